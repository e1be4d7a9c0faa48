"""Whatever is written: by several at once, from a lying server, on a full disk, and killed meanwhile."""

import hashlib
import io
import json
import os
import shutil
import socketserver
import sys
import tarfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image
from safetensors import safe_open

from attacks import Fault, Place, forked
from firstpage import cli, demo, durable, recipes
from firstpage.data import download, file_download
from firstpage.data.glyphs import draw_glyphs

LONG = 90.0  # seconds that a sound command may take on a busy machine
SIZE = 100_000  # bytes of a download


def writers(place: Place) -> None:
    """Write one file from several processes and threads at once: it is always one of those written."""
    path, many = place.folder / "file", place.lots.randint(2, 4)
    durable.write(path, b"0" * 9)

    def write(letter: str) -> None:
        sizes = [place.lots.randrange(1, 600_000) for _ in range(6)]
        threads = [
            threading.Thread(target=lambda size=size: durable.write(path, letter.encode() * size))  # type: ignore[misc]
            for size in sizes
        ]
        failed: list[object] = []
        threading.excepthook = failed.append
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        if failed:
            raise failed[0].exc_value  # type: ignore[attr-defined]

    done: list[BaseException | None] = []

    def run(letter: str) -> None:
        try:
            forked(lambda: write(letter), codes=(0,))
            done.append(None)
        except BaseException as error:
            done.append(error)

    watchers = [threading.Thread(target=run, args=(letter,)) for letter in "abcd"[:many]]
    [watcher.start() for watcher in watchers]
    while len(done) < many:
        if len(letters := set(path.read_bytes())) != 1:
            [watcher.join() for watcher in watchers]
            raise Fault(f"half a file: {bytes(sorted(letters))[:9]!r} in one")
    [watcher.join() for watcher in watchers]
    for error in filter(None, done):
        raise error
    if litter := [name for name in os.listdir(place.folder) if name != "file"]:
        raise Fault(f"litter is left: {litter[:3]}")


class Liar(BaseHTTPRequestHandler):
    """Serves `server.content` in the way that `server.lie` says."""

    def do_GET(self) -> None:
        """Answer, or lie."""
        content, lie = self.server.content, self.server.lie  # type: ignore[attr-defined]
        if lie in ("loop", "file"):
            self.send_response(302)
            self.send_header("Location", self.path + "x" if lie == "loop" else "file:///etc/passwd")
            self.end_headers()
            return
        self.send_response(206 if lie == "range" else 200)
        lengths = {"short": len(content), "longer": 10**9, "words": "many", "negative": -5, "": len(content)}
        if lie in lengths:
            self.send_header("Content-Length", str(lengths[lie]))
        if lie == "range":
            self.send_header("Content-Range", "bytes 999999999999-7/3")
        self.end_headers()
        with suppress(OSError):
            if lie == "drip":
                while not self.server.closing.wait(0.1):  # type: ignore[attr-defined]
                    self.wfile.write(b"x")
            elif lie in ("long", "longer"):
                for _ in range(200):
                    self.wfile.write(content)
            else:
                self.wfile.write(content[: len(content) // 2] if lie == "short" else content)
                if lie == "other":
                    self.wfile.write(b"other")

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep quiet."""


class Server(ThreadingHTTPServer):
    """A server that does not wait for those it lies to."""

    daemon_threads, block_on_close = True, False
    handle_error = socketserver.BaseServer.close_request


@contextmanager
def serving(content: bytes, lie: str = "") -> Iterator[str]:
    """Serve bytes in the block, at the address it gets."""
    with Server(("127.0.0.1", 0), Liar) as server:
        server.content, server.lie, server.closing = content, lie, threading.Event()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/file"
        finally:
            server.closing.set()  # type: ignore[attr-defined]
            server.shutdown()


def downloads(place: Place) -> None:
    """Download from a server that lies, with a link planted beside the target."""
    lies = ("", "short", "long", "longer", "words", "negative", "loop", "file", "range", "drip", "other")
    lie, planted = (
        lies[place.index % len(lies)],
        place.lots.choice(("", "f.part", "f.part.version", "f.lock", "f")),
    )
    content, folder = place.lots.randbytes(SIZE), place.folder / "downloads"
    folder.mkdir()
    victim, target = place.folder / "victim", folder / "f"
    victim.write_bytes(b"keep")
    if planted:
        (folder / planted).symlink_to(victim)
    quick = {"_PAUSE": 0.01, "_TIMEOUT": 3.0, "_WINDOW": 3.0}  # so that giving up takes less than a hang
    quick = {name: value for name, value in quick.items() if hasattr(file_download, name)}
    with serving(content, lie) as url, mock.patch.multiple(file_download, **quick), place.refusable():
        sha256 = hashlib.sha256(content).hexdigest()
        file_download.download_file(url, target, size=SIZE, sha256=sha256, attempts=2, progress=False)
        if target.read_bytes() != content:
            raise Fault(f"{lie} server: what it sent instead is accepted")
    if victim.read_bytes() != b"keep":
        raise Fault(f"{lie} server, link {planted}: a file outside was overwritten")
    large = [
        path.name for path in folder.iterdir() if not path.is_symlink() and path.stat().st_size > 2 * SIZE
    ]
    if large:
        raise Fault(f"{lie} server: {large} has more than twice the published size")


def _get(url: str, content: bytes, out: Path) -> None:
    """`data get`, of a dataset that a server of ours has."""
    source, digest = download._SOURCES["lfw"], hashlib.sha256(content).hexdigest()
    files = (replace(source.files[1], url=url, size=len(content), sha256=digest),)
    with mock.patch.dict(download._SOURCES, lfw=replace(source, files=files)):
        cli.main(["data", "get", "lfw", str(out)])


def _glyphs(folder: Path) -> None:
    """Draw few glyphs; an error of the system is an answer, as it is on the command line."""
    try:
        draw_glyphs(folder, images=1)
    except OSError as error:
        print(error)
        sys.exit(2)


def _demo(base: Path, out: Path) -> None:
    """`demo`, with few images and a recipe of a second."""
    few, recipe = draw_glyphs(base / "glyphs", images=2), recipes.Recipe.read(base / "short.toml")
    small = partial(demo.run_demo, recipe=recipe)
    with mock.patch.multiple(demo, read=lambda _: few, run_demo=small):
        cli.main(["demo", f"--out={out}"])


def _archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for number in range(300):
            entry = tarfile.TarInfo(f"lfw/Ann/Ann_{number:04d}.jpg")
            entry.size = 4000
            archive.addfile(entry, io.BytesIO(os.urandom(4000)))
    return buffer.getvalue()


@contextmanager
def command(place: Place, out: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Give the name and the call of a command that writes into a folder."""
    base, run, cpu = place.base, place.base / "run", "--device=cpu"
    lines: dict[str, list[object]] = {
        "train": ["train", base / "short.toml", f"--data={base}/pictures", f"--out={out}/run", cpu],
        "embed": ["embed", run, base / "pictures", out / "x.npz", cpu],
        "evaluate": ["evaluate", run, "--json", f"--out={out}/e.json", cpu],
        "report": ["report", run, f"--out={out}/r.html", "--no-clustering", cpu],
        "figures png": ["figures", "training", run, f"--out={out}/t.png"],
        "figures svg": ["figures", "roc", base / "x.npz", f"--out={out}/r.svg"],
        "figures pdf": ["figures", "sphere-density", f"--out={out}/s.pdf"],
        "figures lists": ["figures", "retrieved-lists", run, f"--out={out}/l.png"],
        "export": ["export", run, out / "m.onnx"],
        "data check": ["data", "check", base / "few", f"--figure={out}/c.png"],
    }
    fair = ["--folds", "--set=train.protocol=fair", "--set=schedule.epochs=1"]
    lines["train folds"] = [*lines["train"], *fair]
    names = [*lines, "glyphs", "demo", "data get"]
    name = names[place.index % len(names)]
    os.environ["FIRSTPAGE_CACHE"] = str(out / "cache")
    if name in lines:
        yield name, lambda: cli.main([str(part) for part in lines[name]])
    elif name == "glyphs":
        yield name, lambda: _glyphs(out / "glyphs")
    elif name == "demo":
        place.beat(LONG)
        draw_glyphs(base / "glyphs", images=2)  # once
        yield name, lambda: _demo(base, out / "demo")
    else:
        content = _archive()
        with serving(content) as url:
            yield name, lambda: _get(url, content, out)


OPENERS: dict[str, Callable[[Path], Any]] = {
    ".json": lambda path: json.loads(path.read_text()),
    ".jsonl": lambda path: [json.loads(line) for line in path.read_text().split("\n")[:-1]],
    ".toml": lambda path: tomllib.loads(path.read_text()),
    ".png": lambda path: Image.open(path).load(),
    ".npz": lambda path: [len(array) for array in np.load(path).values()],
    ".npy": lambda path: np.load(path).shape,
    ".safetensors": lambda path: [len(part) for part in [safe_open(path, "np")] for part in part.keys()],  # noqa: SIM118
    ".html": lambda path: path.read_text().rstrip().index("</html>"),
    ".svg": lambda path: path.read_text().rstrip().index("</svg>"),
    ".pdf": lambda path: path.read_bytes().rindex(b"%%EOF"),
    ".onnx": lambda path: __import__("onnx").checker.check_model(str(path)),
    ".jpg": lambda path: path.stat().st_size == 4000 or 1 / 0,
}


def whole(out: Path) -> None:
    """Open every finished file under a folder."""
    for path in sorted(out.rglob("*")):
        unfinished = any(".part" in part or part.startswith(("building-", ".lfw")) for part in path.parts)
        if path.is_file() and path.suffix in OPENERS and not unfinished:
            try:
                OPENERS[path.suffix](path)
            except Exception as error:
                raise Fault(
                    f"half a file: {path.name}, {path.stat().st_size} bytes ({error!r:.80})"
                ) from None


def state(out: Path, times: bool = False) -> dict[str, object]:
    """Return the content of each file, or when it was last written."""
    found: dict[str, object] = {}
    for path in out.rglob("*"):
        with suppress(OSError):  # gone by now
            if path.is_file() and path.suffix != ".lock" and (times or "cache" not in path.parts):
                found[str(path)] = (
                    (path.stat().st_size, path.stat().st_mtime_ns) if times else path.read_bytes()
                )
    return found


def full_disk(place: Place) -> None:
    """Let no file grow beyond a few bytes: what was there stays, and with space it works."""
    out = place.folder / "out"
    out.mkdir()
    with command(place, out) as (name, call):
        place.beat(LONG)
        if name not in (
            "train",
            "train folds",
            "demo",
            "glyphs",
            "data get",
        ):  # which leave a finished result
            forked(call, codes=(0,), limit=LONG)
            shutil.rmtree(out / "cache", ignore_errors=True)
        before = state(out)
        place.beat(LONG)
        largest = max(
            (len(content) for content in before.values() if isinstance(content, bytes)), default=50_000
        )
        code, _ = forked(call, limit=LONG, file_limit=place.lots.randrange(largest))
        after = state(out)
        if code and any(after.get(path) != content for path, content in before.items()):
            raise Fault(f"{name}: the file that was there is lost")
        whole(out)
        place.beat(LONG)
        forked(call, codes=(0,), limit=LONG)
        whole(out)


ESTIMATES: dict[str, float] = {}  # seconds of each command, as measured


def kills(place: Place) -> None:
    """Kill a command at a random moment: every file is whole, and the command works again."""
    lots, out = place.lots, place.folder / "out"
    out.mkdir()
    with command(place, out) as (name, call):
        for attempt in range(4):
            place.beat(LONG)
            begin, delay = time.monotonic(), lots.uniform(0, ESTIMATES.get(name, 2.0))
            changes, seen = lots.randint(1, 5), [state(out, times=True)]

            def writing(seconds: float) -> bool:
                if (now := state(out, times=True)) != seen[-1]:  # noqa: B023
                    seen.append(now)  # noqa: B023
                return len(seen) > changes  # noqa: B023

            timed = attempt > 0 or lots.random() < 0.5
            code, _ = forked(call, codes=(0,), limit=LONG, stop=(lambda s: s >= delay) if timed else writing)  # noqa: B023
            whole(out)
            if code is None:
                break
            ESTIMATES[name] = time.monotonic() - begin  # it was quicker: sooner the next time
            shutil.rmtree(out)
            out.mkdir()
        place.beat(LONG)
        forked(call, codes=(0,), limit=LONG)
        whole(out)
        litter = [path.name for path in out.rglob("*") if ".part" in path.name]
        if len(litter) > 1:
            raise Fault(f"{name}: litter is left: {litter[:3]}")
