"""Health metrics of a training step: whether a run is learning, has stalled or has collapsed."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firstpage.losses import Combined, Margin
from firstpage.losses.base import Loss
from firstpage.pairs import Pairs, full_precision

BINS = 20  # of the histogram of β, over the distances 0 to 2 of the sphere


def step_health(loss: nn.Module, pairs: Pairs) -> dict[str, Tensor]:
    """Return the health metrics of one step, on its device.

    - `spread`: 1 − mean cosine over all pairs of different images. 0 when all images are one point, about 1
      when they fill the sphere.
    - `collapse`: mean squared cosine over the same pairs, the inverse of the number of dimensions in use. 1
      when all images lie in one point or on one line, 1/D when D dimensions are used alike.
    - `active_pairs`: the share of these pairs whose similarity the loss wants to change: ∂loss/∂s ≠ 0.
      Missing for losses that do not use the similarity of pairs (those over proxies, N-pair, spectral).
    - `idle_anchors`: the share of queries that learn nothing: none of their pairs is active, and the loss
      does not move their embedding in another way. 1 is a batch from which nothing is learned.
    - `loss/NAME`: each part of a sum of losses, before its weight.
    - `beta`, `beta_histogram`: the mean of the queries' learned boundaries β, and how many lie in each of 20
      equal bins over 0…2; only for the margin loss.

    The gradient is that of the loss with respect to the similarity matrix, so any loss over `Pairs` is
    measured in the same way. It costs the loss once more, without the network. For losses that are not
    subclasses of `Loss` only `spread` and `collapse` are known.

    Args:
        loss: The loss of the step. Strategies that sample do so once more.
        pairs: The pairs of the step.

    >>> pairs = Pairs.of(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    >>> from firstpage.losses import BinomialDeviance
    >>> {name: value.item() for name, value in step_health(BinomialDeviance(), pairs).items()}
    {'spread': 1.0, 'collapse': 0.0, 'active_pairs': 1.0, 'idle_anchors': 0.0}
    """
    compared = pairs.positive | pairs.negative
    count = compared.sum().clamp_min(1)
    cosine = pairs.similarity.detach()
    metrics = {
        "spread": 1 - torch.where(compared, cosine, 0).sum() / count,
        "collapse": torch.where(compared, cosine.square(), 0).sum() / count,
    }
    if not isinstance(loss, Loss):
        return metrics
    with torch.enable_grad():
        probed = pairs.probe()
        queries, leaf = probed.queries, probed.similarity
        if isinstance(loss, Combined):
            with full_precision(leaf):
                terms = loss.part_terms(probed)
                total = loss.reduced(loss.weighted(terms)).sum()
            metrics |= {
                f"loss/{name}": loss.reduced(part.detach()).sum()
                for name, part in zip(loss.names, terms, strict=True)
            }
        else:
            total = loss.of(probed).sum()
        direct, through = torch.autograd.grad(total, (queries, leaf), allow_unused=True)
    moved = torch.zeros(len(cosine), dtype=torch.bool, device=cosine.device)
    if through is not None:
        active = (through != 0) & compared
        metrics["active_pairs"] = active.sum() / count
        moved |= active.any(dim=1)
    if direct is not None:
        moved |= (direct != 0).any(dim=1)
    metrics["idle_anchors"] = 1 - moved.float().mean()
    for part in loss.modules():
        if isinstance(part, Margin):
            beta = part.boundary(pairs).detach().float()
            metrics["beta"] = beta.mean()
            metrics["beta_histogram"] = torch.histc(beta.clamp(0, 2), BINS, 0, 2)
    return metrics


class DeferredMetrics:
    """Metrics on their way from the device to the host, which asks for the values later.

    Args:
        metrics: Tensors on one device.

    >>> DeferredMetrics({"loss": torch.tensor(0.5), "beta_histogram": torch.tensor([1, 2])}).values()
    {'loss': 0.5, 'beta_histogram': [1, 2]}
    """

    def __init__(self, metrics: Mapping[str, Tensor]) -> None:
        self._shapes = {name: value.shape for name, value in metrics.items()}
        packed = torch.cat([value.detach().reshape(-1).double() for value in metrics.values()])
        self._values = packed.to("cpu", non_blocking=True)
        self._arrival = torch.cuda.Event() if packed.is_cuda else None  # type: ignore[no-untyped-call]
        if self._arrival is not None:
            self._arrival.record()

    def values(self) -> dict[str, Any]:
        """Return scalars as numbers and counts as lists, waiting once until all have arrived."""
        if self._arrival is not None:
            self._arrival.synchronize()
        remaining = self._values.tolist()
        values: dict[str, Any] = {}
        for name, shape in self._shapes.items():
            part, remaining = remaining[: shape.numel()], remaining[shape.numel() :]
            values[name] = [int(count) for count in part] if shape else part[0]
        return values


class CollapseDetector:
    """Notices when a run has collapsed, and says when it has recovered.

    A run has collapsed when `collapse` was above 0.98 in five logged steps in a row, or in the last one of a
    short run: any two images have a cosine of ±0.99. Networks trained from scratch may begin there, and
    leave it soon; `was_apart` tells a run that came into this state from one that has not left it yet.

    >>> detector = CollapseDetector()
    >>> [detector.update(step, {"collapse": 0.999, "spread": 0.001}) is None for step in (20, 40, 60, 80)]
    [True, True, True, True]
    >>> detector.update(100, {"collapse": 0.999, "spread": 0.001})
    'step 100: collapsed: all images have nearly the same embedding (mean cosine 0.999): try a lower ...
    >>> detector.update(120, {"collapse": 0.9, "spread": 0.06})
    'step 120: no longer collapsed'
    >>> CollapseDetector().update(20, {"collapse": 0.999, "spread": 0.001}, last=True) is None
    False
    """

    THRESHOLD, IN_A_ROW = 0.98, 5

    def __init__(self) -> None:
        self.in_a_row = 0
        self.was_apart = False
        self.warnings: list[str] = []

    def update(self, step: int, metrics: Mapping[str, Any], last: bool = False) -> str | None:
        """Return the warning that this step gives rise to, if any; the last step waits for no further one."""
        before, collapsed = self.in_a_row, metrics["collapse"] > self.THRESHOLD
        self.in_a_row = before + 1 if collapsed else 0
        self.was_apart |= not collapsed
        if self.in_a_row == self.IN_A_ROW or (last and 0 < self.in_a_row < self.IN_A_ROW):
            self.warnings.append(
                f"step {step}: collapsed: all images have nearly the same embedding (mean cosine "
                f"{1 - metrics['spread']:.3f}): try a lower optimizer.lr, loss.score=log for topk, semihard "
                "or distance-weighted instead of hard negatives, or model.standardize=true; best/ holds the "
                "best model so far"
            )
        elif before >= self.IN_A_ROW and not collapsed:
            self.warnings.append(f"step {step}: no longer collapsed")
        else:
            return None
        return self.warnings[-1]

    def state_dict(self) -> dict[str, Any]:
        """Return the count and the warnings so far, for a checkpoint."""
        return {"in_a_row": self.in_a_row, "was_apart": self.was_apart, "warnings": list(self.warnings)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.in_a_row, self.warnings = state["in_a_row"], list(state["warnings"])
        self.was_apart = state["was_apart"]
