"""A run folder, read: the recipe, what ran, the log, and what came of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstpage.errors import UserError
from firstpage.recipes.recipe import Recipe

__all__ = ["Record", "Series"]

Series = tuple[list[float], list[float]]  # steps, values


@dataclass(frozen=True)
class Record:
    """A run as its folder tells it: finished, still going, or killed.

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
            UserError: a file in it is broken.

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
            raise UserError(f"{source / 'run.json'}: {error}") from None
        if not isinstance(about, dict):
            raise UserError(f"{source / 'run.json'}: not a table of what ran")
        return cls(source, Recipe.read(source / "recipe.toml"), about, _lines(source / "log.jsonl"))

    @property
    def name(self) -> str:
        """The folder's name.

        >>> Record(Path("runs/a"), Recipe(), {}, []).name
        'a'
        """
        return self.folder.resolve().name

    @property
    def result(self) -> dict[str, Any]:
        """What came of the run; empty before its end.

        >>> Record(Path("runs/a"), Recipe(), {}, []).result
        {}
        """
        return self.about.get("result") or {}

    @property
    def evaluations(self) -> list[dict[str, float]]:
        """The lines that measure the model, by step.

        A run that went on from a checkpoint may measure a step again: the later line counts.

        >>> log = [{"step": 0, "P@1": 1.0}, {"step": 9, "loss": 0.1}, {"step": 9, "P@1": 4.0}]
        >>> Record(Path(), Recipe(), {}, log).evaluations
        [{'step': 0, 'P@1': 1.0}, {'step': 9, 'P@1': 4.0}]
        """
        measured = {line["step"]: line for line in self.log if "P@1" in line}
        return [measured[step] for step in sorted(measured)]

    def curve(self, measure: str) -> tuple[list[int], list[float]]:
        """Steps, and the measure at each of them.

        Raises:
            UserError: the run did not measure that.

        >>> Record(Path(), Recipe(), {}, [{"step": 0, "P@1": 12.5}]).curve("P@1")
        ([0], [12.5])
        """
        evaluations = self.evaluations
        lines = [line for line in evaluations if measure in line]
        if not lines:
            raise self._missing(measure, evaluations[0] if evaluations else ())
        return [int(line["step"]) for line in lines], [line[measure] for line in lines]

    def reported(self, measure: str) -> float:
        """The measure in the reported test; at the best evaluation while there is no report.

        Raises:
            UserError: the run did not measure that.

        >>> Record(Path(), Recipe(), {"result": {"test": {"R@1": 60.0}}}, []).reported("R@1")
        60.0
        """
        evaluations = self.evaluations
        best = max(evaluations, key=lambda line: line["P@1"]) if evaluations else {}
        figures: dict[str, float] = self.result.get("test") or best
        if measure not in figures:
            raise self._missing(measure, figures)
        return figures[measure]

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

    def _missing(self, measure: str, there: Iterable[str]) -> UserError:
        names = ", ".join(name for name in there if name not in ("step", "epoch"))
        has = f"it has {names}" if names else "it has no evaluation yet: wait for the first one"
        return UserError(f"run {self.name!r} has no {measure}: {has}")


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
