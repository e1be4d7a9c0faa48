"""The contract's Catalog, only its fields: the catalog branch replaces this file at merge."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Catalog:
    """Images, labels and splits of one dataset; paths are relative to `root`."""

    name: str
    root: Path
    paths: list[str]
    labels: NDArray[np.int64]
    classes: list[str]
    splits: dict[str, NDArray[np.int64]]
    boxes: NDArray[np.float32] | None = None
    groups: NDArray[np.int64] | None = None
    group_names: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, row: int) -> Path:
        """The file of one row."""
        return self.root / self.paths[row]
