"""What a run came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from firstpage.models.embedder import Embedder
from firstpage.runs.record import Record
from firstpage.training.display import SHOWN

__all__ = ["Result"]


@dataclass
class Result:
    """What a run came to.

    Attributes:
        model: the embedder, with its best weights.
        best: the figures of the selection test at its best evaluation.
        test: the figures of the test that is reported (under `paper` the same).
        epoch: the epoch of the best evaluation, counted from 1; 0 is the untrained model.
        history: the figures of every evaluation, the untrained model's first.
        seconds: time spent in training steps.
        images_per_second: over all training steps but the first few.
        folder: the run folder.
        warnings: what was wrong with the run, in words.
    """

    model: Embedder
    best: dict[str, float]
    test: dict[str, float] | None
    epoch: int
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    images_per_second: float = 0.0
    folder: Path | None = None
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The result of a run that ended before."""
        record = Record.read(folder)
        came = record.result
        return cls(
            Embedder.load(folder / "best"),
            came["best"],
            came["best"] if came["protocol"] == "paper" else came["test"],
            came["epoch"],
            [{name: line[name] for name in line if name != "step"} for line in record.evaluations],
            came["seconds"],
            came["images_per_second"],
            folder,
            [*came["warnings"], f"{folder}: was finished before; give another folder to run it again"],
        )

    def text(self) -> str:
        """Before and after, as a small table."""
        rows = [("untrained", figures) for figures in self.history[:1]] + [("trained", self.best)]
        if self.test is not None and self.test is not self.best:  # selected on other classes
            rows = [(f"{title}, held out", figures) for title, figures in rows] + [
                ("trained, test", self.test)
            ]
        names = [name for name in SHOWN if name in self.best]
        width = max(len(title) for title, _ in rows) + 1
        lines = [" " * width + "".join(f"{name:>7}" for name in names)]
        for title, figures in rows:
            lines.append(f"{title:{width}}" + "".join(f"{figures[name]:7.1f}" for name in names))
        pace = f", {self.images_per_second:,.0f} images/s" if self.images_per_second else ""
        lines.append(f"best at epoch {self.epoch}; {self.seconds:.{0 if self.seconds >= 10 else 1}f} s{pace}")
        if not self.epoch:
            lines.append("no epoch was better than the untrained network: that is what is kept")
        if self.folder is not None:
            lines.append(f"model in {self.folder / 'best'}")
        lines += self.warnings
        return "\n".join(lines)
