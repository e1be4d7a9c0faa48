"""What the figures need of a run folder: its recipe, its evaluations, and what came of it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firstpage.training.recipe import Recipe

__all__ = ["RunLog", "read_run"]


@dataclass(frozen=True)
class RunLog:
    """A run as its folder tells it.

    Attributes:
        name: the folder's name.
        recipe: what ran.
        evaluations: the lines of `log.jsonl` that measure the model, by step.
        result: the figures of the reported test, by name; of the best evaluation while there is no report.

    >>> from firstpage.training import Recipe
    >>> RunLog("a", Recipe(), [{"step": 0, "P@1": 12.5}], {"P@1": 12.5}).curve("P@1")
    ([0], [12.5])
    """

    name: str
    recipe: Recipe
    evaluations: list[dict[str, float]]
    result: dict[str, float]

    def curve(self, measure: str) -> tuple[list[int], list[float]]:
        """Steps and the measure at each of them.

        Raises:
            ValueError: the run did not measure that.
        """
        lines = [line for line in self.evaluations if measure in line]
        if not lines:
            raise ValueError(f"run {self.name!r} has no {measure}: it has {', '.join(self.measures())}")
        return [int(line["step"]) for line in lines], [line[measure] for line in lines]

    def measures(self) -> list[str]:
        """The names of what was measured."""
        return [name for name in self.evaluations[0] if name not in ("step", "epoch")]


def read_run(folder: str | os.PathLike[str]) -> RunLog:
    """Read a run folder, also of a run that is still going or was killed, or went on after that.

    Raises:
        ValueError: it is no run folder, or nothing has been measured yet.

    >>> read_run("nowhere")
    Traceback (most recent call last):
    ValueError: nowhere: no run folder: it holds recipe.toml and log.jsonl
    """
    from firstpage.training.recipe import Recipe

    place = Path(folder)
    if not (place / "recipe.toml").is_file() or not (place / "log.jsonl").is_file():
        raise ValueError(f"{folder}: no run folder: it holds recipe.toml and log.jsonl")
    lines = _lines(place / "log.jsonl")
    # A run that went on from a checkpoint may measure a step again: the later line counts.
    measured = {int(line["step"]): line for line in lines if "P@1" in line}
    if not measured:
        raise ValueError(f"{folder}: log.jsonl holds no evaluation: wait for the first one")
    evaluations = [measured[step] for step in sorted(measured)]
    about = json.loads((place / "run.json").read_text()) if (place / "run.json").is_file() else {}
    best = max(evaluations, key=lambda line: line["P@1"])
    result = about.get("result", {}).get("test") or {
        k: v for k, v in best.items() if k not in ("step", "epoch")
    }
    return RunLog(place.resolve().name, Recipe.read(place / "recipe.toml"), evaluations, result)


def _lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines; the last one may have been cut off with the process that wrote it."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict) and "step" in line:
            lines.append(line)
    return lines
