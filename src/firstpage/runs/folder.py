"""The folder of a run: what ran, on what, and what came of it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import subprocess
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import torch

import firstpage
from firstpage import durable
from firstpage.data.catalog import Catalog
from firstpage.errors import UserError
from firstpage.recipes.recipe import Recipe
from firstpage.runs.record import Record

__all__ = ["Run", "fingerprint"]

PATIENCE = 5.0  # seconds in which a job that was killed just now may still be ending


class Run:
    """A run folder: `recipe.toml`, `run.json`, `log.jsonl`, and the models `best/` and `last/`.

    While it trains, `checkpoint/` holds what a killed run goes on from, and `lock` keeps other processes out.
    As a context it lets them in again at its end; the system does so for a process that dies.

    TensorBoard events go to `events/` where tensorboard is installed.

    Args:
        folder: where; made if need be. None keeps nothing on disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Run(Path(folder, "run"))
    ...     run.begin(Recipe(), Catalog("x", Path(), ["a"], np.zeros(1, int), ["a"], {}), "cpu")
    ...     run.log(step=1, loss=0.5)
    ...     sorted(path.name for path in Path(folder, "run").glob("*.*"))
    ['log.jsonl', 'recipe.toml', 'run.json']
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.events: Any = None
        self._lock: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.events is not None:
            with suppress(OSError):  # what they lack is in the log
                self.events.close()
        if self._lock is not None:
            Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()

    def claim(self, recipe: Recipe, catalog: Catalog) -> None:
        """Keep other processes out of the folder, until the context ends or the process dies.

        Raises:
            UserError: another process trains in it, or has come to its end just now.
        """
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        given_up = time.monotonic() + PATIENCE
        while not self._locked():
            if time.monotonic() >= given_up:
                raise UserError(
                    f"{self.folder}: another process trains in it: wait for its end, or give another --out"
                )
            time.sleep(0.1)
        if self.finished(recipe, catalog):
            raise UserError(f"{self.folder}: another process finished it just now: run the same to see it")

    def _locked(self) -> bool:
        assert self.folder is not None
        path = self.folder / "lock"
        lock = path.open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.path.samestat(path.stat(), os.fstat(lock.fileno()))
        except (BlockingIOError, FileNotFoundError):  # held; or let go and removed since it was opened
            mine = False
        except OSError:  # a disk that has no locks
            mine = True
        if mine:
            self._lock = lock
        else:
            lock.close()
        return mine

    def finished(self, recipe: Recipe, catalog: Catalog) -> bool:
        """Whether the folder holds this very run, and it came to its end.

        Raises:
            UserError: the folder holds a run of another recipe or other data, is no run's, or cannot be.
        """
        if self.folder is None:
            return False
        try:
            record = Record.read(self.folder)
        except FileNotFoundError:
            durable.check(self.folder / "run.json")
            begun = ("lock", "recipe.toml", "recipe.toml.part", "run.json.part")  # by one that was killed
            there = self.folder.iterdir() if self.folder.is_dir() else ()
            other = next((path.name for path in there if path.name not in begun), None)
            if other is not None:
                raise UserError(
                    f"{self.folder}: holds other things, such as {other!r}: give another --out"
                ) from None
            return False
        except ValueError as error:  # of a recipe this version does not know, or a broken file
            raise UserError(
                f"{self.folder}: holds a run of another version of firstpage ({error}): nothing was changed; "
                "give another --out, or remove it"
            ) from None
        written = Recipe.of(tomllib.loads(recipe.toml()))  # TOML has no None, so compare as written
        other = _difference(record.recipe, written)
        if record.about["data"]["fingerprint"] != fingerprint(catalog):
            other = f"on other data, {record.about['data']['name']!r}"
        if other:
            raise UserError(
                f"{self.folder}: holds a run {other}: nothing was changed; give another --out, or remove it"
            )
        return bool(record.result)

    def begin(self, recipe: Recipe, catalog: Catalog, device: str, learned: Sequence[str] = ()) -> None:
        """Write what is about to run; `learned` are the classes it learns from, where no splits say so."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        durable.write(self.folder / "recipe.toml", recipe.toml().encode())
        about = {
            "firstpage": firstpage.__version__,
            "git": _git_hash(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name()
            if device.startswith("cuda")
            else f"CPU ({platform.machine()})",
            "data": {
                "name": catalog.name,
                "root": str(catalog.root.resolve()),
                "images": len(catalog),
                "fingerprint": fingerprint(catalog),
            }
            | ({"learned": list(learned)} if learned else {}),
        }
        self._write(about)
        self._open(0)

    def _write(self, about: dict[str, Any]) -> None:
        assert self.folder is not None
        durable.write(self.folder / "run.json", f"{json.dumps(about, indent=2)}\n".encode())

    def go_on(self, logged: int) -> None:
        """Forget what was logged after a checkpoint, when the log had `logged` bytes."""
        if self.folder is not None:
            self._open(logged)

    def _open(self, logged: int) -> None:
        assert self.folder is not None
        log = self.folder / "log.jsonl"
        with log.open("ab") as file:
            file.truncate(min(logged, file.tell()))
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        # The log is the truth: a killed process takes along the events it had not written out.
        for old in (self.folder / "events").glob("events.out.*"):
            old.unlink()
        self.events = SummaryWriter(str(self.folder / "events"))
        for line in Record.read(self.folder).log:
            self._draw(**line)

    def logged(self) -> int:
        """The size of the log, once all of it is on the disk."""
        if self.folder is None:
            return 0
        with (self.folder / "log.jsonl").open("ab") as file:
            os.fsync(file.fileno())
            return file.tell()

    def log(self, *, step: int, **figures: Any) -> None:  # noqa: ANN401
        """One line of `log.jsonl`, and a point of each curve; a list of counts is a histogram over 0…2."""
        if self.folder is None:
            return
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps({"step": step} | figures) + "\n")
        self._draw(step, **figures)

    def _draw(self, step: int, **figures: Any) -> None:  # noqa: ANN401
        for name, value in figures.items() if self.events is not None else ():
            if isinstance(value, list):
                edges = np.linspace(0, 2, len(value) + 1)
                middles = np.repeat((edges[1:] + edges[:-1]) / 2, np.array(value, int))
                self.events.add_histogram(name, middles, step, bins=edges)
            elif not isinstance(value, str):
                self.events.add_scalar(name, value, step)

    def end(self, **figures: Any) -> None:  # noqa: ANN401
        """Add what came of it to `run.json`."""
        if self.events is not None:
            self.events.close()
        if self.folder is not None:
            self._write(Record.read(self.folder).about | {"result": figures})


def fingerprint(catalog: Catalog) -> str:
    """A digest of paths, labels and splits: equal for equal data sets, whatever folder they are in.

    >>> one = Catalog("x", Path("here"), ["a"], np.zeros(1, int), ["a"], {})
    >>> two = Catalog("x", Path("there"), ["a"], np.zeros(1, int), ["a"], {})
    >>> fingerprint(one) == fingerprint(two)
    True
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update("\0".join(catalog.paths).encode("utf-8", "surrogateescape"))
    digest.update(np.ascontiguousarray(catalog.labels, dtype=np.int64).tobytes())
    for name in sorted(catalog.splits):
        digest.update(name.encode() + np.ascontiguousarray(catalog.splits[name], dtype=np.int64).tobytes())
    return digest.hexdigest()


def _difference(there: Recipe, new: Recipe) -> str | None:
    """The first setting that differs, in words."""
    for section, table in asdict(there).items():
        now = asdict(new)[section]
        for key in [*table, *now]:
            if table.get(key) != now.get(key):
                here = f"not {now[key]!r}" if key in now else "which is not given here"
                return (
                    f"with {section}.{key}={table[key]!r}, {here}"
                    if key in table
                    else f"without {section}.{key}"
                )
    return None


def _git_hash() -> str | None:
    here = Path(firstpage.__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
