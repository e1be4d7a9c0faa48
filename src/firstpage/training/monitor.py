"""Logs how a run is doing, without making the host wait for the device."""

from collections.abc import Callable, Mapping

from torch import Tensor

from firstpage.runs.folder import RunFolder
from firstpage.training.display import Display
from firstpage.training.health import CollapseDetector, DeferredMetrics
from firstpage.training.nonfinite import NonFiniteGuard

LOG_EVERY = 20  # steps


class Monitor:
    """Writes the metrics of every `LOG_EVERY`th step to the log and the display, and warns of a collapse.

    The device computes them; the host reads them one step later, when it has given the device more work.

    Args:
        run: The run folder, for its log.
        display: What the user sees.
        guard: Its status is read together with the metrics.
        detector: Is updated with the metrics.
        steps: Number of steps of the run.
        mend: Called when the run has collapsed; returns what was done about it.

    >>> Monitor.is_due(19), Monitor.is_due(20)
    (False, True)
    """

    def __init__(
        self,
        run: RunFolder,
        display: Display,
        guard: NonFiniteGuard,
        detector: CollapseDetector,
        steps: int,
        mend: Callable[[], str],
    ) -> None:
        self._run, self._display, self._guard = run, display, guard
        self._detector, self._steps, self._mend = detector, steps, mend
        self._pending: list[tuple[int, int, float, DeferredMetrics]] = []

    @staticmethod
    def is_due(step: int, last: int | None = None) -> bool:
        """Return whether a step is logged: every `LOG_EVERY`th one, and the last."""
        return step % LOG_EVERY == 0 or step == last

    def add(self, step: int, epoch: int, lr: float, metrics: Mapping[str, Tensor]) -> None:
        """Take the metrics of a step, on the device."""
        deferred = DeferredMetrics({**metrics, "status": self._guard.status})
        self._pending.append((step, epoch, lr, deferred))
        if self._guard.eager:
            self.flush()

    def flush(self) -> None:
        """Log what was taken, and stop the run if a step was not finite."""
        while self._pending:
            step, epoch, lr, deferred = self._pending.pop()
            metrics = deferred.values()
            self._guard.check(metrics.pop("status"))
            self._run.log(step=step, epoch=epoch, lr=lr, **metrics)
            self._display.show_loss(metrics["loss"])
            text = self._detector.update(step, metrics, last=step == self._steps)
            if text:
                kind = "warning" if self._detector.in_a_row else "recovery"
                self._run.log(step=step, **{kind: text})
                self._display.print(text)
            if text and self._detector.in_a_row and self._detector.was_apart and step < self._steps:
                done = self._mend()
                self._run.log(step=step, warning=done)
                self._display.print(done)
