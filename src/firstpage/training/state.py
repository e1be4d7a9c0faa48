"""Everything a killed run needs to continue: the contents of a checkpoint."""

from collections.abc import Mapping
from typing import Any

import torch

from firstpage.errors import UserError
from firstpage.models.embedder import Embedder


class TrainState:
    """How far a run has come, its best model so far, and the state of all its parts.

    `state_dict` is what a checkpoint holds: the attributes below and the state of the parts, which `TrainJob`
    lists. The state of random generators is not needed: all random numbers are seeded by the run's seed and
    the step.

    Args:
        parts: By name, everything with a `state_dict`: the model, the losses, the optimizer, the sampler, …
        select: The metric that decides which evaluation is the best.

    Attributes:
        step: Number of finished steps.
        best: Metrics of the best evaluation.
        best_epoch: Its epoch; 0 is the untrained model.
        best_weights: The model at that evaluation; before the first one, as it was at the start.
        untrained: Metrics of the untrained model in the reported test.
        history: The metrics of every evaluation.
        stale: Number of evaluations since the best.
        mended: How often the run has collapsed and been mended.

    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> state = TrainState({"model": model})
    >>> state.add_evaluation(1, {"P@1": 40.0}, model), state.add_evaluation(2, {"P@1": 30.0}, model)
    (True, False)
    >>> resumed = TrainState({"model": model})
    >>> resumed.load_state_dict(state.state_dict())
    >>> resumed.best_epoch, resumed.stale, len(resumed.history)
    (1, 1, 2)
    """

    def __init__(self, parts: Mapping[str, Any], select: str = "P@1") -> None:
        self.parts, self.select = parts, select
        self.step = self.stale = self.best_epoch = self.mended = 0
        self.best: dict[str, float] = {}
        self.keep(parts["model"])
        self.untrained: dict[str, float] | None = None
        self.history: list[dict[str, float]] = []

    def add_evaluation(self, epoch: int, metrics: dict[str, float], model: Embedder) -> bool:
        """Add the metrics of an evaluation, and return whether it is the best so far."""
        self.history.append({"epoch": epoch} | metrics)
        if self.select not in metrics:
            raise UserError(f"train.select={self.select!r}: choose one of {', '.join(metrics)}")
        if self.best and self._rank(metrics) <= self._rank(self.best):
            self.stale += 1
            return False
        self.best, self.best_epoch, self.stale = metrics, epoch, 0
        self.keep(model)
        return True

    def keep(self, model: Embedder) -> None:
        """Keep the weights of a model as the best so far."""
        self.best_weights = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def _rank(self, metrics: Mapping[str, float]) -> tuple[float, float]:
        """Return what evaluations are compared by: few images give equal values often, MAP@R seldom."""
        return metrics[self.select], metrics.get("MAP@R", 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Return everything a checkpoint holds."""
        own = {name: value for name, value in vars(self).items() if name != "parts"}
        return own | {"parts": {name: part.state_dict() for name, part in self.parts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, also from one of another device."""
        for name, part in self.parts.items():
            saved = state["parts"][name]
            if isinstance(part, torch.optim.Optimizer):
                for own, group in zip(part.param_groups, saved["param_groups"], strict=True):
                    group["fused"] = own["fused"]  # which depends on the device
            part.load_state_dict(saved)
        for name in vars(self).keys() - {"parts"}:
            setattr(self, name, state[name])
