"""The contents of a run folder: recipe, environment, log and result."""

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

Series = tuple[list[float], list[float]]  # steps, values


@dataclass(frozen=True)
class Record:
    """The contents of a run folder, whether the run is finished, still training, or was killed.

    Attributes:
        folder: The run folder.
        recipe: The recipe of the run.
        about: `run.json`: versions, git hash, device and data; and `result`, once the run is finished.
        log: The lines of `log.jsonl`.

    >>> Record(Path("runs/a"), Recipe(), {"torch": "2.6"}, [{"step": 1, "loss": 0.5}]).logged_series()
    {'loss': ([1.0], [0.5])}
    """

    folder: Path
    recipe: Recipe
    about: dict[str, Any]
    log: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Record:
        """Read a run folder, ignoring an incomplete last line of the log.

        Raises:
            FileNotFoundError: It is not a run folder.
            UserError: A file in it is damaged.

        >>> Record.read("nowhere")
        Traceback (most recent call last):
        FileNotFoundError: nowhere: not a run folder: recipe.toml or run.json is missing
        """
        source = Path(folder)
        if not (source / "recipe.toml").is_file() or not (source / "run.json").is_file():
            raise FileNotFoundError(f"{folder}: not a run folder: recipe.toml or run.json is missing")
        try:
            about = json.loads((source / "run.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{source / 'run.json'}: {error}") from None
        if not isinstance(about, dict):
            raise UserError(f"{source / 'run.json'}: must hold a JSON object, not a {type(about).__name__}")
        return cls(source, Recipe.read(source / "recipe.toml"), about, _read_log(source / "log.jsonl"))

    @property
    def name(self) -> str:
        """The name of the folder.

        >>> Record(Path("runs/a"), Recipe(), {}, []).name
        'a'
        """
        return self.folder.resolve().name

    @property
    def result(self) -> dict[str, Any]:
        """The result of the run; empty until it is finished.

        >>> Record(Path("runs/a"), Recipe(), {}, []).result
        {}
        """
        return self.about.get("result") or {}

    @property
    def evaluations(self) -> list[dict[str, float]]:
        """The log lines of evaluations, by step.

        A run resumed from a checkpoint may evaluate a step again: the later line counts.

        >>> log = [{"step": 0, "P@1": 1.0}, {"step": 9, "loss": 0.1}, {"step": 9, "P@1": 4.0}]
        >>> Record(Path(), Recipe(), {}, log).evaluations
        [{'step': 0, 'P@1': 1.0}, {'step': 9, 'P@1': 4.0}]
        """
        by_step = {line["step"]: line for line in self.log if "P@1" in line}
        return [by_step[step] for step in sorted(by_step)]

    def metric_curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Return the steps of the evaluations, and the metric at each of them.

        Raises:
            UserError: The run did not log the metric.

        >>> Record(Path(), Recipe(), {}, [{"step": 0, "P@1": 12.5}]).metric_curve("P@1")
        ([0], [12.5])
        """
        evaluations = self.evaluations
        lines = [line for line in evaluations if metric in line]
        if not lines:
            raise self._missing(metric, evaluations[0] if evaluations else ())
        return [int(line["step"]) for line in lines], [line[metric] for line in lines]

    def final_metric(self, metric: str) -> float:
        """Return the metric of the test; that of the best evaluation until the run is finished.

        Raises:
            UserError: The run did not log the metric.

        >>> Record(Path(), Recipe(), {"result": {"test": {"R@1": 60.0}}}, []).final_metric("R@1")
        60.0
        """
        evaluations = self.evaluations
        best = max(evaluations, key=lambda line: line["P@1"]) if evaluations else {}
        metrics: dict[str, float] = self.result.get("test") or best
        if metric not in metrics:
            raise self._missing(metric, metrics)
        return metrics[metric]

    def logged_series(self) -> dict[str, Series]:
        """Return the steps and values of every number in the log, by name.

        NaN and infinity are included, because they show where a run diverged. A run resumed from a checkpoint
        may log a step again: the later line counts.

        >>> log = [{"step": 0, "epoch": 0, "P@1": 1.0}, {"step": 9, "active": 0.5, "epoch": 1, "P@1": 4.0}]
        >>> Record(Path(), Recipe(), {}, log).logged_series()
        {'P@1': ([0.0, 9.0], [1.0, 4.0]), 'active': ([9.0], [0.5])}
        """
        by_name: dict[str, dict[float, float]] = {}
        for line in self.log:
            for name, value in line.items():
                if name in ("step", "epoch") or isinstance(value, bool) or not isinstance(value, int | float):
                    continue
                by_name.setdefault(name, {})[float(line["step"])] = float(value)
        return {
            name: (sorted(values), [values[step] for step in sorted(values)])
            for name, values in by_name.items()
        }

    def _missing(self, metric: str, logged: Iterable[str]) -> UserError:
        names = ", ".join(name for name in logged if name not in ("step", "epoch"))
        remedy = f"it has {names}" if names else "it has no evaluation yet: wait for the first one"
        return UserError(f"run {self.name!r} has no {metric}: {remedy}")


def _read_log(path: Path) -> list[dict[str, Any]]:
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
