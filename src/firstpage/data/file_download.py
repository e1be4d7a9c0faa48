"""Downloading one file: resumable, checked against its checksum, in place only when complete."""

import hashlib
import http.client
import os
import re
import socket
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from firstpage.data.locking import exclusive
from firstpage.errors import UserError

_PAUSE = 1.0  # seconds before another attempt
_TIMEOUT = 60.0  # seconds without any data
_WINDOW = 120.0  # seconds over which a server must have sent `_PACE` bytes per second
_PACE = 1000
_MOST = 2**30  # bytes of a file whose size is not published


def download_file(
    url: str,
    target: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    attempts: int = 5,
    progress: bool = True,
) -> str:
    """Download a file, unless it exists already, and return its sha256.

    An interrupted download resumes where it stopped, in this call or in a later one. If another process is
    downloading the same file, this one waits for it. Links in the place of its temporary files are removed,
    not followed.

    Args:
        url: The address of the file.
        target: The path to save it to. Its folder is created.
        size: Published size in bytes. Anything else is refused as soon as it shows. A file of unknown size
            may have a gibibyte at most.
        sha256: Expected checksum in hexadecimal digits, or the beginning of it.
        attempts: Give up after this many attempts in a row that brought no new data.
        progress: Show a progress bar on standard error.

    Raises:
        UserError: The checksum or the size is wrong. The file is removed.
        OSError: The server cannot be reached, does not have the file, or sends less than 1,000 bytes per
            second for two minutes. What came is kept.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, target = Path(folder, "a"), Path(folder, "b")
    ...     _ = source.write_bytes(b"pixels")
    ...     download_file(source.as_uri(), target, progress=False)[:8], target.read_bytes()
    ('6ec9c2b0', b'pixels')
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    waiting = f"another process is downloading {target}; waiting for it" if progress else ""
    with ExitStack() as stack:
        with suppress(OSError):  # some file systems have no locks: the checksum then shows a collision
            stack.enter_context(exclusive(target, waiting))
        if target.exists() and (digest := file_sha256(target)).startswith(sha256 or ""):
            return digest
        part = target.with_name(f"{target.name}.part")
        for path in (part, _version_file(part)):
            _remove_planted(path)
        _download(url, part, size, sha256 is not None, attempts, progress)
        digest = file_sha256(part)
        _version_file(part).unlink(missing_ok=True)
        if not digest.startswith(sha256 or ""):
            part.unlink()
            raise UserError(
                f"damaged download of {url}: its sha256 is {digest}, not {sha256}; removed it, try again"
            )
        part.replace(target)
        return digest


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal digits.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     file_sha256(Path(file.name))[:8]
    'e3b0c442'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Watchdog:
    """Shuts the connections of a download down when the server sends less than `_PACE` bytes per second.

    A time limit of the socket does not do that: a byte now and then, even within a header, resets it.
    """

    def __init__(self) -> None:
        self.received, self.slow = 0, False
        self._sockets: list[socket.socket] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

        def watched(kind: Any) -> Any:  # noqa: ANN401
            return type(
                kind.__name__, (kind,), {"connect": lambda connection: self._connect(kind, connection)}
            )

        class Http(urllib.request.HTTPHandler):
            def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(watched(http.client.HTTPConnection), req)

        class Https(urllib.request.HTTPSHandler):
            def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(watched(http.client.HTTPSConnection), req)

        self.open = urllib.request.build_opener(Http, Https).open

    def _connect(self, kind: Any, connection: http.client.HTTPConnection) -> None:  # noqa: ANN401
        kind.connect(connection)
        self._sockets.append(connection.sock)

    def _watch(self) -> None:
        before = 0
        while not self._done.wait(_WINDOW):
            if self.received - before < _PACE * _WINDOW:
                self.slow = True
                for connection in self._sockets:
                    with suppress(OSError):  # it is closed
                        connection.shutdown(socket.SHUT_RDWR)
            before = self.received

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()


def _download(url: str, part: Path, size: int | None, checked: bool, attempts: int, progress: bool) -> None:
    """Send requests until a partial file is complete."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        _Watchdog() as watchdog,
        Progress(*columns, console=Console(stderr=True), transient=True, disable=not progress) as bar,
    ):
        report = partial(bar.update, bar.add_task(part.stem, total=size))
        failures, complete, longest = 0, False, _length(part)
        while not complete:
            try:
                complete = _request_rest(watchdog, url, part, size, checked, report)
                problem = "the connection was lost"
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code} {error.reason}"
                if error.code < 500 and error.code not in (408, 429):  # another attempt would not help
                    raise OSError(f"could not download {url}: {problem}") from None
            except UserError:
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: malformed answers
                problem = str(error)
            failures = 0 if complete or _length(part) > longest else failures + 1
            longest = max(longest, _length(part))
            if watchdog.slow:  # a header that was cut short may even look complete
                problem, failures = f"the server sends less than {_PACE:,} bytes per second", attempts
            if failures == attempts:
                received = _length(part)
                resumable = f"; kept the first {received:,} bytes, run it again to resume" if received else ""
                raise OSError(f"could not download {url}: {problem}{resumable}")
            if not complete:
                time.sleep(_PAUSE)


def _request_rest(
    watchdog: _Watchdog, url: str, part: Path, size: int | None, checked: bool, report: Callable[..., None]
) -> bool:
    """Request what is missing of a partial file; return whether it is complete now."""
    start, version = _length(part), _read_version(part)
    headers = {"User-Agent": "firstpage"}
    if start and (version or checked):  # otherwise nothing would show that the file has changed meanwhile
        headers["Range"] = f"bytes={start}-"
        if version:
            headers["If-Range"] = version
    try:
        response = watchdog.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        whole = error.headers.get("Content-Range") == f"bytes */{start}"
        if whole and size in (None, start):  # nothing is missing
            return True
        part.unlink(missing_ok=True)
        _check_size(url, start if whole else 0, size)
        return False
    with response:
        resumed = str(response.headers.get("Content-Range")).startswith(f"bytes {start}-")
        start = start if resumed else 0  # the server has another version by now, or only sends whole files
        length = response.headers.get("Content-Length") or ""
        total = start + int(length) if re.fullmatch(r"[0-9]{1,18}", length) else size
        _check_size(url, total or 0, size)
        if not resumed:
            part.unlink(missing_ok=True)
        tag = response.headers.get("ETag") or ""
        tag = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified") or ""
        _version_file(part).unlink(missing_ok=True)
        with _open_own(_version_file(part)) as file:
            file.write(tag.encode(errors="replace"))
        with _open_own(part) as file:
            while block := response.read1(1 << 18):
                start += len(block)
                watchdog.received += len(block)
                if start > (_MOST if size is None else size):
                    file.close()
                    part.unlink()
                    _check_size(url, start, size)
                file.write(block)
                report(completed=start, total=total)
    return total in (None, start)


def _check_size(url: str, sent: int, size: int | None) -> None:
    """Refuse a file of another size than the published one.

    Args:
        url: Its address.
        sent: Number of bytes that the server sends, or has sent already; 0 if it is not known.
        size: The published size, or None.
    """
    wrong = sent > _MOST if size is None else sent not in (0, size)
    if wrong:
        published = f"at most {_MOST:,}" if size is None else f"the published {size:,}"
        raise UserError(
            f"{url}: the server sends {sent:,} bytes or more, not {published}: it is another file; "
            "try again later, or download it by hand"
        )


def _open_own(path: Path) -> BinaryIO:
    """Open a file to append to, without following a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o666), "ab")


def _remove_planted(path: Path) -> None:
    """Remove what this module did not create: a link, a FIFO, or a second name of some other file."""
    with suppress(FileNotFoundError):
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            path.unlink()


def _read_version(part: Path) -> str:
    """Return the version of a partial file as the server named it, or "" if it is not fit for a header."""
    with suppress(OSError):
        with _version_file(part).open("rb") as file:
            text = file.read(1000).decode(errors="replace")
        return text if re.fullmatch(r"[ -~]{1,500}", text) else ""
    return ""


def _version_file(part: Path) -> Path:
    """Return the file that holds the version of a partial file, as the server named it."""
    return part.with_name(f"{part.name}.version")


def _length(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
