"""The result of a run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.runs.folder import RunFolder
from firstpage.runs.record import Record
from firstpage.training.display import SHOWN

_KEYS = {"protocol", "best", "test", "epoch", "seconds", "images_per_second", "warnings"}
CURE = "what may help: pretrained weights (model.weights), more images of each class, a lower optimizer.lr"


@dataclass
class Result:
    """The result of a run.

    Attributes:
        model: The embedder, with its best weights.
        best: Metrics of the best evaluation on the validation classes.
        test: Metrics of the reported test (under the `paper` protocol the same).
        epoch: The epoch of the best evaluation, counted from 1; 0 is the untrained model.
        history: Metrics of every evaluation, the untrained model's first.
        seconds: Time spent in training steps.
        images_per_second: Over all training steps but the first few.
        folder: The run folder.
        warnings: Warnings of the run.
        untrained: Metrics of the untrained model in the reported test.
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
    untrained: dict[str, float] | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the result of a finished run.

        Raises:
            UserError: A file of the run is damaged.
        """
        record = Record.read(folder)
        result = record.result
        missing = _KEYS - result.keys()
        if missing:
            raise UserError(
                f"{folder / 'run.json'}: result.{min(missing)} is missing: restore it from a copy"
            )
        return cls(
            Embedder.load(folder / "best"),
            result["best"],
            result["best"] if result["protocol"] == "paper" else result["test"],
            result["epoch"],
            [{name: line[name] for name in line if name != "step"} for line in record.evaluations],
            result["seconds"],
            result["images_per_second"],
            folder,
            [*result["warnings"], f"{folder}: was already finished; choose another folder to run it again"],
            result.get("untrained"),
        )

    def write(self, run: RunFolder, protocol: str) -> None:
        """Write the result into the folder of the run, which is finished with it."""
        run.finish(
            protocol=protocol,
            best=self.best,
            test=self.test,
            untrained=self.untrained,
            epoch=self.epoch,
            seconds=round(self.seconds, 2),
            images_per_second=round(self.images_per_second, 1),
            warnings=self.warnings,
        )

    def text(self) -> str:
        """Return the metrics before and after training as a small table."""
        before = next((metrics for metrics in self.history[:1] if not metrics.get("epoch")), None)
        tests = [("", before, self.best)]
        if self.test is not None and self.test is not self.best:  # selected on other classes
            tests = [("selection, ", before, self.best), ("test, ", self.untrained, self.test)]
        rows = []
        for title, untrained, trained in tests:
            rows += [] if untrained is None else [(f"{title}untrained", untrained)]
            rows += [(f"{title}trained", trained)] if self.is_trained else []
        names = [name for name in SHOWN if all(name in metrics for _, metrics in rows)]
        width = max(len(title) for title, _ in rows) + 1
        lines = [" " * width + "".join(f"{name:>7}" for name in names)]
        for title, metrics in rows:
            lines.append(f"{title:{width}}" + "".join(f"{metrics[name]:7.1f}" for name in names))
        if not self.is_trained:
            return "\n".join([*lines, *self._places()])
        speed = f", {self.images_per_second:,.0f} images/s" if self.images_per_second else ""
        decimals = 0 if self.seconds >= 10 else 1
        lines.append(f"best at epoch {self.epoch}; {self.seconds:.{decimals}f} s{speed}")
        if not self.epoch:
            lines += [
                "no epoch was better than the untrained network, so that is the model that was kept",
                CURE,
            ]
        elif self.untrained and self.test and self.test["P@1"] < self.untrained["P@1"]:
            lines += ["in the test it is worse than the untrained network: training did not help", CURE]
        return "\n".join([*lines, *self._places()])

    @property
    def is_trained(self) -> bool:
        """Whether the model was trained at all: a baseline is not."""
        return self.epoch > 0 or self.seconds > 0

    def _places(self) -> list[str]:
        """Return where the model is, and the warnings."""
        return ([] if self.folder is None else [f"model in {self.folder / 'best'}"]) + self.warnings
