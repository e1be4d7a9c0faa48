"""What a run folder says of itself: the recipe, what ran, and the log."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstpage.training.recipe import Recipe

__all__ = ["Record", "Series"]

Series = tuple[list[float], list[float]]  # steps, values


@dataclass(frozen=True)
class Record:
    """A run folder, read.

    Attributes:
        folder: where it is.
        recipe: what was asked for.
        about: `run.json`: versions, git hash, device, data; and `result`, unless the run was cut short.
        log: the lines of `log.jsonl`.

    >>> Record(Path("runs/a"), Recipe(), {"torch": "2.6"}, [{"step": 1, "loss": 0.5}]).series()
    {'loss': ([1.0], [0.5])}
    """

    folder: Path
    recipe: Recipe
    about: dict[str, Any]
    log: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Record:
        """Read a run folder.

        A last line that a kill cut short is left out.

        Raises:
            FileNotFoundError: it is no run folder.
            ValueError: a file in it is broken.

        >>> Record.read("nowhere")
        Traceback (most recent call last):
        FileNotFoundError: nowhere: no run folder: it holds recipe.toml, run.json and log.jsonl
        """
        source = Path(folder)
        if not (source / "recipe.toml").is_file() or not (source / "run.json").is_file():
            raise FileNotFoundError(f"{folder}: no run folder: it holds recipe.toml, run.json and log.jsonl")
        try:
            about = json.loads((source / "run.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{source / 'run.json'}: {error}") from None
        if not isinstance(about, dict):
            raise ValueError(f"{source / 'run.json'}: not a table of what ran")
        return cls(source, Recipe.read(source / "recipe.toml"), about, _lines(source / "log.jsonl"))

    @property
    def name(self) -> str:
        """The folder's name.

        >>> Record(Path("runs/a"), Recipe(), {}, []).name
        'a'
        """
        return self.folder.resolve().name

    def series(self) -> dict[str, Series]:
        """Every number that was logged along the steps, by name.

        NaN and infinity stay: a curve that breaks off is a finding. A run that went on from a checkpoint may
        log a step again: the later line counts.

        >>> log = [{"step": 0, "epoch": 0, "P@1": 1.0}, {"step": 9, "active": 0.5, "epoch": 1, "P@1": 4.0}]
        >>> Record(Path(), Recipe(), {}, log).series()
        {'P@1': ([0.0, 9.0], [1.0, 4.0]), 'active': ([9.0], [0.5])}
        """
        found: dict[str, dict[float, float]] = {}
        for line in self.log:
            for name, value in line.items():
                if name in ("step", "epoch") or isinstance(value, bool) or not isinstance(value, int | float):
                    continue
                found.setdefault(name, {})[float(line["step"])] = float(value)
        return {
            name: (sorted(points), [points[step] for step in sorted(points)])
            for name, points in found.items()
        }


def _lines(path: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    if not path.is_file():
        return lines
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        step = line.get("step") if isinstance(line, dict) else None
        if isinstance(step, int | float) and math.isfinite(step):
            lines.append(line)
    return lines
