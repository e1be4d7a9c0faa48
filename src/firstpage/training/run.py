"""The folder of a run: what ran, on what, and what came of it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

import firstpage
from firstpage.data.catalog import Catalog
from firstpage.training.recipe import Recipe

__all__ = ["Run", "fingerprint"]


class Run:
    """A run folder: `recipe.toml`, `run.json`, `log.jsonl`, and the models `best/` and `last/`.

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

    def begin(self, recipe: Recipe, catalog: Catalog, device: str) -> None:
        """Write what is about to run."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "recipe.toml").write_text(recipe.toml())
        about = {
            "firstpage": firstpage.__version__,
            "git": _git_hash(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine(),
            "data": {
                "name": catalog.name,
                "root": str(catalog.root.resolve()),
                "images": len(catalog),
                "fingerprint": fingerprint(catalog),
            },
        }
        (self.folder / "run.json").write_text(json.dumps(about, indent=2) + "\n")
        (self.folder / "log.jsonl").write_text("")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self.events = SummaryWriter(str(self.folder / "events"))

    def log(self, *, step: int, **figures: float | int | str) -> None:
        """One line of `log.jsonl`, and a point of each curve."""
        if self.folder is None:
            return
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps({"step": step} | figures) + "\n")
        if self.events is not None:
            for name, value in figures.items():
                if not isinstance(value, str):
                    self.events.add_scalar(name, value, step)

    def end(self, **figures: Any) -> None:  # noqa: ANN401
        """Add what came of it to `run.json`."""
        if self.events is not None:
            self.events.close()
        if self.folder is not None:
            path = self.folder / "run.json"
            about = json.loads(path.read_text()) | {"result": figures}
            path.with_suffix(".part").write_text(json.dumps(about, indent=2) + "\n")
            os.replace(path.with_suffix(".part"), path)


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


def _git_hash() -> str | None:
    here = Path(firstpage.__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
