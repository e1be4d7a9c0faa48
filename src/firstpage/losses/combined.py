"""A weighted sum of losses over one set of pairs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction
from firstpage.pairs import Pairs


class Combined(Loss):
    """A weighted sum of losses, which share one similarity matrix.

    Args:
        parts: the losses; their own reductions do not matter.
        weights: one per loss, all 1 if left out.
        reduction: over queries.
        names: what the parts are called in logs; their classes' names if left out.

    >>> from firstpage.losses import Angular, NPair
    >>> loss = Combined([NPair(), Angular()], weights=[1.0, 2.0])
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    tensor(2.9304)
    """

    def __init__(
        self,
        parts: Sequence[Loss],
        weights: Sequence[float] | None = None,
        reduction: Reduction = "mean",
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(reduction)
        weights = [1.0] * len(parts) if weights is None else list(weights)
        if not parts or len(weights) != len(parts):
            raise UserError(
                f"Combined: got {len(parts)} losses and {len(weights)} weights: give one weight per loss"
            )
        for part in parts:
            if not isinstance(part, Loss):
                raise UserError(f"Combined: got {type(part).__name__}: give losses of firstpage.losses")
        self.parts = nn.ModuleList(parts)
        self.weights = weights
        self.names = [type(part).__name__ for part in parts] if names is None else list(names)

    def part_terms(self, pairs: Pairs) -> list[Tensor]:
        """[Q] of each part: what each query contributes, before the weights."""
        return [part.terms(pairs) for part in self.parts]  # type: ignore[operator]

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: the weighted sum of the losses' terms."""
        return self.weighted(self.part_terms(pairs))

    def weighted(self, terms: Sequence[Tensor]) -> Tensor:
        """[Q]: the weighted sum of the terms of each part."""
        return torch.stack([weight * part for weight, part in zip(self.weights, terms, strict=True)]).sum(
            dim=0
        )
