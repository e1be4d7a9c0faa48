"""The contents of a run folder: recipe, environment, log and result."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from firstpage._reading import parse_json, read_json
from firstpage._types import convert
from firstpage.errors import UserError, one_line
from firstpage.recipes.recipe import Recipe

Series = tuple[list[float], list[float]]  # steps, values

MAX_LINE = 2**20  # bytes of a line in the log
MAX_LOG = 2**30


class _Data(TypedDict, total=False):
    name: str
    root: str
    images: int
    fingerprint: str
    file: str
    classes: str
    train_classes: list[str]
    marks: str


class _Result(TypedDict, total=False):
    protocol: str
    best: dict[str, float]
    test: dict[str, float] | None
    untrained: dict[str, float] | None
    epoch: int
    seconds: float
    images_per_second: float
    warnings: list[str]


class _About(TypedDict, total=False):
    """The types of what `run.json` may hold; other versions may write more."""

    firstpage: str
    git: str | None
    python: str
    torch: str
    device: str
    data: _Data | None
    result: _Result | None


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
        about = read_json(source / "run.json", nan=True)  # a metric may be NaN
        try:
            about = convert(about, _About, "run")
        except UserError as error:
            raise UserError(f"{source / 'run.json'}: {one_line(error)}: restore it from a copy") from None
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
        select = self.recipe.train.select
        best = max(evaluations, key=lambda line: line.get(select, -1.0)) if evaluations else {}
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
    with path.open("rb") as file:
        while text := file.readline(MAX_LINE + 1):
            try:
                lines.append(_parse_line(text))
                if file.tell() > MAX_LOG:
                    raise UserError(f"is beyond the first {MAX_LOG:,} bytes")
            except UserError as error:
                if len(text) <= MAX_LINE and not text.endswith(b"\n"):
                    break  # the last line, cut by a kill while it was written
                raise UserError(
                    f"{path}: line {len(lines) + 1}: {one_line(error)}: restore the file from a copy, "
                    "or remove the line"
                ) from None
    return lines


def _parse_line(text: bytes) -> dict[str, Any]:
    """Return a line of the log, checked: all values of an evaluation are numbers."""
    if len(text) > MAX_LINE:
        raise UserError(f"is longer than {MAX_LINE:,} bytes")
    line: dict[str, Any] = parse_json(text, nan=True)
    is_evaluation = isinstance(line, dict) and "P@1" in line
    convert(line, dict[str, float] if is_evaluation else dict[str, float | str | list[int]], "line")
    if "step" not in line:
        raise UserError("has no step")
    convert(line["step"], int, "step")
    return line
