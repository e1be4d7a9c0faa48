"""What a run came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from firstpage.models.embedder import Embedder
from firstpage.training.display import SHOWN
from firstpage.training.record import Record

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
            came["test"],
            came["epoch"],
            [{name: line[name] for name in line if name != "step"} for line in record.evaluations],
            came["seconds"],
            came["images_per_second"],
            folder,
            [*came["warnings"], f"{folder}: was finished before; give another folder to run it again"],
        )

    def text(self) -> str:
        """Before and after, as a small table."""
        before, after = self.history[0], self.test or self.best
        names = [name for name in SHOWN if name in after]
        lines = [f"{'':10}" + "".join(f"{name:>7}" for name in names)]
        for title, figures in (("untrained", before), ("trained", after)):
            lines.append(f"{title:10}" + "".join(f"{figures[name]:7.1f}" for name in names))
        lines.append(
            f"best at epoch {self.epoch}; {self.seconds:.0f} s, {self.images_per_second:,.0f} images/s"
        )
        if self.folder is not None:
            lines.append(f"model in {self.folder / 'best'}")
        lines += self.warnings
        return "\n".join(lines)
