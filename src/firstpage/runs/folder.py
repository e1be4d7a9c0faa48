"""The folder of a run: what ran, on what data, and the results."""

import hashlib
import json
import os
import platform
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from filelock import FileLock, Timeout

import firstpage
from firstpage import durable
from firstpage.data.catalog import Catalog
from firstpage.data.marks import FILE, QUERIES
from firstpage.errors import UserError
from firstpage.recipes.recipe import Recipe
from firstpage.runs.record import Record

LOCK_TIMEOUT = 5.0  # seconds in which a job that was killed just now may still be ending


class RunFolder:
    """A run folder: `recipe.toml`, `run.json`, `log.jsonl`, and the models `best/` and `last/`.

    While the run trains, `checkpoint/` holds what it resumes from if killed, and a lock on `.lock` keeps
    other processes out; the system releases it when the process dies. TensorBoard events go to `events/`
    if tensorboard is installed.

    Args:
        path: The folder, created if missing. None keeps nothing on disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = RunFolder(Path(folder, "run"))
    ...     run.begin(Recipe(), Catalog("x", Path(), ["a"], np.zeros(1, int), ["a"], {}), "cpu")
    ...     run.log(step=1, loss=0.5)
    ...     sorted(path.name for path in Path(folder, "run").glob("*.*"))
    ['log.jsonl', 'recipe.toml', 'run.json']
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)
        self.events: Any = None
        self._lock: FileLock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.events is not None:
            with suppress(OSError):  # everything is in the log too
                self.events.close()
        if self._lock is not None:
            self._lock.release()

    def lock(self, recipe: Recipe, catalog: Catalog) -> None:
        """Keep other processes out of the folder until the context ends or the process dies.

        Raises:
            UserError: Another process trains in it, or has finished just now.
        """
        if self.path is None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path / ".lock", timeout=LOCK_TIMEOUT)
        try:
            self._lock.acquire()
        except Timeout:
            raise UserError(
                f"{self.path}: another process is training in it: wait for its end, or choose another --out"
            ) from None
        except OSError:  # a file system without locks
            self._lock = None
        if self.is_finished(recipe, catalog):
            raise UserError(f"{self.path}: another process has just finished it: run it again to see it")

    def is_finished(self, recipe: Recipe, catalog: Catalog) -> bool:
        """Return whether the folder holds exactly this run, and it is finished.

        Raises:
            UserError: The folder holds a run with another recipe or other data, is not a run's, or cannot be
                written to.
        """
        if self.path is None:
            return False
        try:
            record = Record.read(self.path)
        except FileNotFoundError:
            durable.check(self.path / "run.json")
            begun = (
                ".lock",
                "recipe.toml",
                FILE,
                QUERIES,
            )  # by a run that was killed, perhaps inside a write
            names = (path.name for path in self.path.iterdir()) if self.path.is_dir() else iter(())
            other = next((name for name in names if name not in begun and not name.endswith(".part")), None)
            if other is not None:
                raise UserError(
                    f"{self.path}: contains other files, such as {other!r}: choose another --out"
                ) from None
            return False
        except UserError as error:  # a recipe this version does not know, or a damaged file
            raise UserError(
                f"{self.path}: contains a run that is damaged or of another version of firstpage ({error}): "
                "nothing was changed; choose another --out, or remove it"
            ) from None
        written = Recipe.of(tomllib.loads(recipe.toml()))  # TOML has no None, so compare as written
        other = _difference(record.recipe, written)
        data = record.about.get("data") or {}
        if data.get("fingerprint") != fingerprint(catalog):
            images = f"{data.get('name')!r} with {data.get('images', 0):,} images in {data.get('root')!r}"
            other = f"on other data, {images}, not these {len(catalog):,}"
        if data.get("marks") != (catalog.marks.digest if catalog.marks else None):
            other = (
                f"with other marks: --feedback {self.path} repeats its own"
                if data.get("marks")
                else "without marks"
            )
        if other:
            raise UserError(
                f"{self.path}: contains a run {other}: nothing was changed; "
                "choose another --out, or remove it"
            )
        return bool(record.result)

    def begin(self, recipe: Recipe, catalog: Catalog, device: str, train_classes: Sequence[str] = ()) -> None:
        """Write what is about to run.

        Args:
            recipe: The recipe.
            catalog: The dataset.
            device: The device.
            train_classes: The classes to train on, for data without splits.
        """
        if self.path is None:
            return
        import torch  # here, as the names in this file are also for commands that need none of it

        from firstpage.models.device import use_half

        self.path.mkdir(parents=True, exist_ok=True)
        if catalog.marks is not None:
            catalog.marks.save(self.path)
        durable.write(self.path / "recipe.toml", recipe.toml().encode())
        about = {
            "firstpage": firstpage.__version__,
            "git": _git_hash(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name()
            if device.startswith("cuda")
            else f"CPU ({platform.machine()})",
            "precision": "bf16" if use_half(torch.device(device), recipe.train.half) else "fp32",
            "data": {
                "name": catalog.name,
                "root": str(catalog.root.resolve()),
                "images": len(catalog),
                "fingerprint": fingerprint(catalog),
            }
            | ({"file": catalog.file} if catalog.file else {})
            | ({"classes": catalog.class_rule} if catalog.class_rule else {})
            | ({"train_classes": list(train_classes)} if train_classes else {})
            | ({"marks": catalog.marks.digest} if catalog.marks else {}),
        }
        self._write(about)
        self._open_log(0)

    def _write(self, about: dict[str, Any]) -> None:
        assert self.path is not None
        durable.write(self.path / "run.json", f"{json.dumps(about, indent=2)}\n".encode())

    def _open_log(self, size: int) -> None:
        assert self.path is not None
        with (self.path / "log.jsonl").open("ab") as file:
            file.truncate(min(size, file.tell()))
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        # The log is complete; a killed process may not have written all its events.
        for old in (self.path / "events").glob("events.out.*"):
            old.unlink()
        self.events = SummaryWriter(str(self.path / "events"))
        for line in Record.read(self.path).log:
            self._write_events(**line)

    def state_dict(self) -> dict[str, int]:
        """Return the size of the log, for a checkpoint, after everything in it has been written to disk."""
        if self.path is None:
            return {"log_bytes": 0}
        with (self.path / "log.jsonl").open("ab") as file:
            os.fsync(file.fileno())
            return {"log_bytes": file.tell()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume from a checkpoint: remove what was logged after it."""
        if self.path is not None:
            self._open_log(state["log_bytes"])

    def log(self, *, step: int, **metrics: Any) -> None:  # noqa: ANN401
        """Add a line to `log.jsonl` and to TensorBoard; a list of counts is a histogram over 0…2."""
        if self.path is None:
            return
        with (self.path / "log.jsonl").open("a") as file:
            file.write(json.dumps({"step": step} | metrics) + "\n")
        self._write_events(step, **metrics)

    def _write_events(self, step: int, **metrics: Any) -> None:  # noqa: ANN401
        for name, value in metrics.items() if self.events is not None else ():
            if isinstance(value, list):
                edges = np.linspace(0, 2, len(value) + 1)
                centers = np.repeat((edges[1:] + edges[:-1]) / 2, np.array(value, int))
                self.events.add_histogram(name, centers, step, bins=edges)
            elif not isinstance(value, str):
                self.events.add_scalar(name, value, step)

    def finish(self, **result: Any) -> None:  # noqa: ANN401
        """Add the result to `run.json`: the run is finished."""
        if self.events is not None:
            self.events.close()
        if self.path is not None:
            self._write(Record.read(self.path).about | {"result": result})


def fingerprint(catalog: Catalog) -> str:
    """Return a digest of paths, labels and splits: equal for equal datasets in any folder.

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


def _difference(old: Recipe, new: Recipe) -> str | None:
    """Describe the first setting that differs."""
    for section, settings in asdict(old).items():
        now = asdict(new)[section]
        for key in [*settings, *now]:
            if key not in settings:
                return f"without {section}.{key}"
            if settings[key] != now.get(key):
                here = f"not {now[key]!r}" if key in now else "which is not set here"
                return f"with {section}.{key}={settings[key]!r}, {here}"
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
