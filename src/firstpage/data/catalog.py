"""The catalog: images, labels, boxes and splits (the fields the pixel store reads)."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True, eq=False)
class Catalog:
    """Labelled images under one root.

    >>> catalog = Catalog("two", Path("images"), ["a.jpg", "b.jpg"], np.array([0, 0]), ["bird"], {})
    >>> len(catalog)
    2
    """

    name: str
    root: Path
    paths: list[str]
    labels: np.ndarray
    classes: list[str]
    splits: dict[str, np.ndarray]
    boxes: np.ndarray | None = None
    warnings: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.paths)
