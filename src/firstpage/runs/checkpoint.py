"""Checkpoints: the whole state of a run in one file that is intact, or known not to be.

A checkpoint is a safetensors file. Its tensors are those of the state; its header holds the rest of the state
as JSON, and a sha256 of everything. Nothing is ever unpickled, and a file that was cut short or has a flipped
bit is recognized. The last two are kept: if the newer is damaged, the run resumes from the one before.
"""

import hashlib
import json
import os
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

KEPT = 2


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write nested dicts, lists and tuples of tensors, numbers, strings, booleans and None.

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
    """Read what `write_state` wrote: on the CPU, with the memory layout it had.

    Raises:
        FileNotFoundError: There is no such file.
        UserError: The file is not as it was written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "x").write_bytes(b"something else")
    ...     read_state(Path(folder, "x"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    firstpage.errors.UserError: .../x: damaged, or not a file of firstpage
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["firstpage"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        if _digest(about["state"], tensors) != about["sha256"]:
            raise ValueError("another digest")
        state: dict[str, Any] = _restored(json.loads(about["state"]), tensors)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError):
        raise UserError(f"{path}: damaged, or not a file of firstpage") from None
    return state


class Checkpoints:
    """The checkpoints of a run folder, of which the last two are kept.

    Args:
        folder: The run folder; None keeps nothing.
        minutes: Time between checkpoints; 0 writes one after every step.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(Path(folder), minutes=0)
    ...     for step in range(5):
    ...         checkpoints.save(step, {"step": step})
    ...     len(list(Path(folder, "checkpoint").iterdir())), checkpoints.load_newest()
    (2, {'step': 4})
    """

    def __init__(self, folder: Path | None, minutes: float) -> None:
        self.folder = None if folder is None else folder / "checkpoint"
        self.seconds = 60 * minutes
        self.saved: int | None = None  # the step of the newest that is known to be intact
        self._time = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the last one is old enough for another."""
        return self.folder is not None and time.monotonic() - self._time >= self.seconds

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write the state after `step` steps, and remove all but the last two."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_state(self.folder / f"step-{step:09d}.safetensors", state)
        self.saved = step
        for old in self._paths()[:-KEPT]:
            old.unlink()
        self._time = time.monotonic()

    def load_newest(self) -> dict[str, Any] | None:
        """Return the newest intact state, or None. Damaged ones are removed, with a warning."""
        for part in [] if self.folder is None else self.folder.glob("*.part"):
            part.unlink()  # of a process that was killed while it wrote
        paths = self._paths()
        while paths:
            path = paths.pop()
            try:
                state = read_state(path)
            except UserError:
                remedy = "resuming from the one before" if paths else "there is no other: starting over"
                warnings.warn(f"{path} is damaged: {remedy}", stacklevel=2)
                path.unlink()
                continue
            self.saved = int(path.stem.removeprefix("step-"))
            return state
        return None

    def remove_all(self) -> None:
        """Remove all checkpoints: the run is finished."""
        if self.folder is not None and self.folder.is_dir():
            for path in [*self._paths(), *self.folder.glob("*.part")]:
                path.unlink()
            self.folder.rmdir()

    @contextmanager
    def explain_mismatch(self) -> Iterator[None]:
        """Within this context, a state that does not fit the run is reported in one line."""
        try:
            yield
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{self.folder or 'checkpoint'}: does not fit: it is from another version of firstpage or of "
                f"your own classes, or images can no longer be read ({reason}): "
                "choose another --out, or remove it"
            ) from error

    @contextmanager
    def explain_full_disk(self) -> Iterator[None]:
        """Within this context, a full disk is reported in one line, with what is saved and what to do."""
        try:
            yield
        except OSError as error:
            if self.folder is None or error.errno not in durable.FULL:
                raise
            saved = "no checkpoint was due yet" if self.saved is None else f"step {self.saved} is saved"
            text = f"{str(self.folder.parent)!r}: {error.strerror}: {saved}; free some space and run it again"
            raise OSError(error.errno, text) from error

    def _paths(self) -> list[Path]:
        return [] if self.folder is None else sorted(self.folder.glob("step-*.safetensors"))


def _plain(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:  # noqa: ANN401
    """Return the value as JSON can represent it; its tensors are collected by name."""
    if isinstance(value, Tensor):
        tensor = value.detach().cpu().contiguous()
        # Safetensors refuses memory that two parts share, such as parameters of both the loss and the model.
        shared = any(tensor.data_ptr() == other.data_ptr() for other in tensors.values())
        tensors[name] = tensor.clone() if shared else tensor
        return {"tensor": name, "stride": value.stride()}
    if isinstance(value, Mapping):  # as a list, since JSON would turn numbers into strings
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
