"""Checkpoints: the whole state of a run in one file that is sound, or known not to be.

A checkpoint is a safetensors file. Its tensors are those of the state; its header holds the rest of the state
as JSON, and a sha256 of everything. Nothing is ever unpickled, and a file that was cut short or has a flipped
bit is recognized. The last two are kept: if the newer is damaged, the run goes on from the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from firstpage import durable
from firstpage.errors import UserError

__all__ = ["Checkpoints", "Stopped", "read_state", "write_state"]

KEPT = 2


class Stopped(KeyboardInterrupt):
    """A run was asked to stop (Ctrl-C, SIGTERM), has written a checkpoint and can go on.

    Attributes:
        signal: which signal asked.

    >>> str(Stopped("after step 3", 15)), Stopped("", 15).signal
    ('after step 3', 15)
    """

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.signal = number


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write nested dicts, lists and tuples of tensors, numbers, texts, booleans and None.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_state(Path(folder, "x"), {"weights": {3: torch.ones(2)}, "rates": (0.1, None)})
    ...     read_state(Path(folder, "x"))
    {'weights': {3: tensor([1., 1.])}, 'rates': (0.1, None)}
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_plain(dict(state), "state", tensors))
    about = json.dumps({"sha256": _digest(text, tensors), "state": text})
    durable.write(path, save(tensors, {"firstpage": about}))


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `write_state` wrote, on the CPU, with the memory layout it had.

    Raises:
        UserError: the file is not as it was written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "x").write_bytes(b"something else")
    ...     read_state(Path(folder, "x"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    firstpage.errors.UserError: .../x: damaged or no checkpoint
    """
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["firstpage"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        sound = _digest(about["state"], tensors) == about["sha256"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError):
        sound = False
    if not sound:
        raise UserError(f"{path}: damaged or no checkpoint")
    state: dict[str, Any] = _restored(json.loads(about["state"]), tensors)
    return state


class Checkpoints:
    """The checkpoints of a run folder: when one is due, the newest sound one, and the two that are kept.

    Args:
        folder: the run's; None keeps nothing.
        minutes: between checkpoints; 0 writes one after every step.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(Path(folder), minutes=0)
    ...     for step in range(5):
    ...         checkpoints.save(step, {"step": step})
    ...     len(list(Path(folder, "checkpoint").iterdir())), checkpoints.newest()
    (2, {'step': 4})
    """

    AGAIN = 1.0  # seconds after which a second signal is another one

    def __init__(self, folder: Path | None, minutes: float) -> None:
        self.folder = None if folder is None else folder / "checkpoint"
        self.seconds = 60 * minutes
        self.kept: int | None = None  # the step of the newest that is known to be sound
        self._since = time.monotonic()
        self._asked = 0  # the signal that asked the run to stop

    def due(self) -> bool:
        """Whether the last one is old enough, or the run shall stop."""
        old = time.monotonic() - self._since >= self.seconds
        return self.folder is not None and (old or bool(self._asked))

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """A context in which Ctrl-C and SIGTERM make a checkpoint due, and end the run once it is written.

        Past its last step the run comes to its end first. Whoever asks again, a second later or more, ends it
        at once. In threads, and where nothing is kept, signals do what they did.
        """
        if self.folder is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        since = 0.0

        def ask(number: int, _: object) -> None:
            nonlocal since
            if not self._asked:
                self._asked, since = number, time.monotonic()
            elif time.monotonic() - since >= self.AGAIN:  # not the same one, sent on by a parent
                restore()
                signal.raise_signal(number)

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        try:
            yield
        finally:
            restore()
        if self._asked:
            raise Stopped(f"stopped: {self.folder.parent} is finished", self._asked)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Keep the state after `step` steps, and of those before only the last."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_state(self.folder / f"step-{step:09d}.safetensors", state)
        self.kept = step
        for old in self._paths()[:-KEPT]:
            old.unlink()
        self._since = time.monotonic()
        if self._asked:
            raise Stopped(f"stopped after step {step}: run the same again to go on", self._asked)

    def newest(self) -> dict[str, Any] | None:
        """The newest sound state; None if there is none. Damaged ones are removed, with a warning."""
        for part in [] if self.folder is None else self.folder.glob("*.part"):
            part.unlink()  # of a process that was killed while it wrote
        paths = self._paths()
        while paths:
            path = paths.pop()
            try:
                state = read_state(path)
            except ValueError:
                remedy = "going back to the one before" if paths else "there is none before it: starting anew"
                warnings.warn(f"{path} is damaged: {remedy}", stacklevel=2)
                path.unlink()
                continue
            self.kept = int(path.stem.removeprefix("step-"))
            return state
        return None

    def clear(self) -> None:
        """Remove them all: the run is finished."""
        if self.folder is not None and self.folder.is_dir():
            for path in [*self._paths(), *self.folder.glob("*.part")]:
                path.unlink()
            self.folder.rmdir()

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """A context in which a state is given to the parts of a run, and told in one line not to fit."""
        try:
            yield
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{self.folder or 'checkpoint'}: does not fit, being of another version of firstpage or "
                f"of images that can no longer be read ({reason}): give another --out, or remove it"
            ) from error

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """A context in which a full disk is told in one line, with what is kept and what to do."""
        try:
            yield
        except OSError as error:
            if self.folder is None or error.errno not in durable.FULL:
                raise
            kept = "no checkpoint was due yet" if self.kept is None else f"step {self.kept} is kept"
            text = f"{str(self.folder.parent)!r}: {error.strerror}: {kept}; make room and run the same again"
            raise OSError(error.errno, text) from error

    def _paths(self) -> list[Path]:
        return [] if self.folder is None else sorted(self.folder.glob("step-*.safetensors"))


def _plain(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:  # noqa: ANN401
    """The value as JSON can say it; its tensors are put aside by name."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name, "stride": value.stride()}
    if isinstance(value, Mapping):  # as a list, since JSON would make texts of numbers
        return {"dict": [[key, _plain(part, f"{name}/{key}", tensors)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        parts = [_plain(part, f"{name}/{index}", tensors) for index, part in enumerate(value)]
        return parts if isinstance(value, list) else {"tuple": parts}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name}: a state cannot hold a {type(value).__name__}")


def _restored(value: Any, tensors: Mapping[str, Tensor]) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_restored(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_restored(part, tensors) for part in value["tuple"])
    if "dict" in value:
        return {key: _restored(part, tensors) for key, part in value["dict"]}
    # Arithmetic walks a tensor in the order of its memory, and may round otherwise in another order.
    saved = tensors[value["tensor"]]
    return torch.empty_strided(saved.shape, value["stride"], dtype=saved.dtype).copy_(saved)


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
