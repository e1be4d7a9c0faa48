"""How a run is doing: figures of one step that tell a run that learns from one that only runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from firstpage.losses import Margin
from firstpage.losses.base import Loss
from firstpage.pairs import Pairs

__all__ = ["Reading", "Watch", "measure"]

BINS = 20  # of the histogram of β, over the distances 0 to 2 of the sphere


class _Probed(Pairs):
    """Pairs whose similarity is where gradients are read, so every method must use that very matrix."""

    def with_constant_candidates(self) -> Pairs:
        return self


def measure(loss: Loss, pairs: Pairs) -> dict[str, Tensor]:
    """The figures of one step, still on its device.

    - `spread`: 1 − mean cosine over all pairs of different images. 0 when all images are one point, about 1
      when they fill the sphere.
    - `collapse`: mean squared cosine over the same pairs, the inverse of the number of dimensions in use. 1
      when all images lie in one point or on one line, 1/D when D dimensions are used alike.
    - `active_pairs`: of these pairs, the share whose similarity the loss wants changed: ∂loss/∂s ≠ 0.
      Left out for losses that do not look at the similarity of pairs (Proxy-NCA, N-pair, spectral).
    - `idle_anchors`: the share of queries of weight zero: no pair of theirs is active, nor does the loss move
      their vector in another way. 1 is a batch from which nothing is learned.
    - `beta`, `beta_histogram`: the mean of the queries' learned boundaries β, and how many lie in each of 20
      equal parts of 0…2; of a margin loss only.

    The gradient is that of the loss with respect to the similarity matrix, so any loss over `Pairs` is
    measured in the same way. It costs the loss once more, without the network.

    Args:
        loss: as it trains. Strategies that draw lots draw once more.
        pairs: of the step.

    >>> pairs = Pairs.of(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    >>> from firstpage.losses import BinomialDeviance
    >>> {name: value.item() for name, value in measure(BinomialDeviance(), pairs).items()}
    {'spread': 1.0, 'collapse': 0.0, 'active_pairs': 1.0, 'idle_anchors': 0.0}
    """
    compared = pairs.positive | pairs.negative
    count = compared.sum().clamp_min(1)
    cosine = pairs.similarity.detach()
    figures = {
        "spread": 1 - torch.where(compared, cosine, 0).sum() / count,
        "collapse": torch.where(compared, cosine.square(), 0).sum() / count,
    }
    with torch.enable_grad():
        queries, leaf = pairs.queries.detach().requires_grad_(), cosine.clone().requires_grad_()
        own = pairs.candidates is pairs.queries
        probed = _Probed(
            queries,
            pairs.labels,
            queries if own else pairs.candidates.detach(),
            pairs.candidate_labels,
            leaf,
            pairs.positive,
            pairs.negative,
            pairs.image_ids,
        )
        total = loss.of(probed).sum()
        direct, through = torch.autograd.grad(total, (queries, leaf), allow_unused=True)
    moved = torch.zeros(len(cosine), dtype=torch.bool, device=cosine.device)
    if through is not None:
        active = (through != 0) & compared
        figures["active_pairs"] = active.sum() / count
        moved |= active.any(dim=1)
    if direct is not None:
        moved |= (direct != 0).any(dim=1)
    figures["idle_anchors"] = 1 - moved.float().mean()
    for part in loss.modules():
        if isinstance(part, Margin):
            beta = part.boundary(pairs).detach().float()
            figures["beta"] = beta.mean()
            figures["beta_histogram"] = torch.histc(beta.clamp(0, 2), BINS, 0, 2)
    return figures


class Reading:
    """Figures on their way to the host, which need not wait for them: it asks for the values later.

    Args:
        figures: on their device.

    >>> Reading({"loss": torch.tensor(0.5), "beta_histogram": torch.tensor([1, 2])}).values()
    {'loss': 0.5, 'beta_histogram': [1, 2]}
    """

    def __init__(self, figures: Mapping[str, Tensor]) -> None:
        self._shapes = {name: figure.shape for name, figure in figures.items()}
        packed = torch.cat([figure.detach().reshape(-1).double() for figure in figures.values()])
        self._read = packed.to("cpu", non_blocking=True)
        self._arrival = torch.cuda.Event() if packed.is_cuda else None  # type: ignore[no-untyped-call]
        if self._arrival is not None:
            self._arrival.record()

    def values(self) -> dict[str, Any]:
        """Figures as numbers, counts as lists; waits until they are there, once for all of them."""
        if self._arrival is not None:
            self._arrival.synchronize()
        read = self._read.tolist()
        found: dict[str, Any] = {}
        for name, shape in self._shapes.items():
            part, read = read[: shape.numel()], read[shape.numel() :]
            found[name] = [int(count) for count in part] if shape else part[0]
        return found


class Watch:
    """Says in words that a run has collapsed, and when it has got over it.

    It has when `collapse` was above 0.98 at five looks one after the other, or at the last of a short run:
    any two images at a cosine of ±0.99. Networks that start from nothing may begin there, and leave it soon.

    >>> watch = Watch()
    >>> [watch.see(step, {"collapse": 0.999, "spread": 0.001}) is None for step in (20, 40, 60, 80)]
    [True, True, True, True]
    >>> watch.see(100, {"collapse": 0.999, "spread": 0.001})
    'step 100: collapsed: any two images are embedded alike (mean cosine 0.999): try a lower optimizer.lr, ...
    >>> watch.see(120, {"collapse": 0.9, "spread": 0.06})
    'step 120: no longer collapsed'
    >>> Watch().see(20, {"collapse": 0.999, "spread": 0.001}, last=True) is None
    False
    """

    LIMIT, LOOKS = 0.98, 5

    def __init__(self) -> None:
        self.in_a_row = 0
        self.warnings: list[str] = []

    def see(self, step: int, figures: Mapping[str, Any], last: bool = False) -> str | None:
        """The warning, if this look is the one that gives rise to it; the last look waits for no more."""
        before, collapsed = self.in_a_row, figures["collapse"] > self.LIMIT
        self.in_a_row = before + 1 if collapsed else 0
        if self.in_a_row == self.LOOKS or (last and 0 < self.in_a_row < self.LOOKS):
            self.warnings.append(
                f"step {step}: collapsed: any two images are embedded alike (mean cosine "
                f"{1 - figures['spread']:.3f}): try a lower optimizer.lr, semihard or distance-weighted in "
                "place of hard negatives, or model.standardize=true; best/ holds the best model so far"
            )
        elif before >= self.LOOKS and not collapsed:
            self.warnings.append(f"step {step}: no longer collapsed")
        else:
            return None
        return self.warnings[-1]

    def state_dict(self) -> dict[str, Any]:
        """How long it has been so, and what was said."""
        return {"in_a_row": self.in_a_row, "warnings": list(self.warnings)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.in_a_row, self.warnings = state["in_a_row"], list(state["warnings"])
