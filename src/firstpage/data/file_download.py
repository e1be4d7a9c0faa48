"""Downloading one file: resumable, checked against its checksum, in place only when complete."""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from firstpage.data.locking import exclusive
from firstpage.errors import UserError

_PAUSE = 1.0  # seconds before another attempt
_TIMEOUT = 60.0


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
    downloading the same file, this one waits for it.

    Args:
        url: The address of the file.
        target: The path to save it to. Its folder is created.
        size: Expected size in bytes, for servers that do not send it.
        sha256: Expected checksum in hexadecimal digits, or the beginning of it.
        attempts: Give up after this many attempts in a row that brought no new data.
        progress: Show a progress bar on standard error.

    Raises:
        UserError: The checksum is wrong. The file is removed.
        OSError: The server cannot be reached, or does not have the file.

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


def _download(url: str, part: Path, size: int | None, checked: bool, attempts: int, progress: bool) -> None:
    """Send requests until a partial file is complete."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not progress) as bar:
        report = partial(bar.update, bar.add_task(part.stem, total=size))
        failures, complete = 0, False
        while not complete:
            before = _length(part)
            try:
                complete = _request_rest(url, part, size, checked, report)
                problem = "the connection was lost"
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code} {error.reason}"
                if error.code < 500 and error.code not in (408, 429):  # another attempt would not help
                    raise OSError(f"could not download {url}: {problem}") from None
            except (OSError, http.client.HTTPException) as error:
                problem = str(error)
            failures = 0 if complete or _length(part) > before else failures + 1
            if failures == attempts:
                received = _length(part)
                resumable = f"; kept the first {received:,} bytes, run it again to resume" if received else ""
                raise OSError(f"could not download {url}: {problem}{resumable}")
            if not complete:
                time.sleep(_PAUSE)


def _request_rest(url: str, part: Path, size: int | None, checked: bool, report: Callable[..., None]) -> bool:
    """Request what is missing of a partial file; return whether it is complete now."""
    start, version_file = _length(part), _version_file(part)
    version = version_file.read_text() if version_file.exists() else ""
    headers = {"User-Agent": "firstpage"}
    if start and (version or checked):  # otherwise nothing would show that the file has changed meanwhile
        headers["Range"] = f"bytes={start}-"
        if version:
            headers["If-Range"] = version
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{start}":  # nothing is missing
            return True
        part.unlink()
        return False
    with response:
        if str(response.headers.get("Content-Range")).startswith(f"bytes {start}-"):
            mode = "ab"
        else:  # the server has another version by now, or only sends whole files
            part.unlink(missing_ok=True)
            start, mode = 0, "wb"
        tag = response.headers.get("ETag") or ""
        version_file.write_text(
            tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified") or ""
        )
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else size
        with part.open(mode) as file:
            while block := response.read(1 << 18):
                file.write(block)
                start += len(block)
                report(completed=start, total=total)
    return total in (None, start)


def _version_file(part: Path) -> Path:
    """Return the file that holds the version of a partial file, as the server named it."""
    return part.with_name(f"{part.name}.version")


def _length(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
