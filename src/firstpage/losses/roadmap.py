"""ROADMAP loss."""

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_mean
from firstpage.losses.ranking import Step, count_above, spread_positives
from firstpage.pairs import Pairs


def roadmap(
    pairs: Pairs,
    temperature: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
    calibration: float = 1.0,
    alpha: float = 0.9,
    beta: float = 0.6,
) -> Tensor:
    """[Q]: 1 − (1/|P|) Σ_{i∈P} r⁺_i / (r⁺_i + r⁻_i), plus the means of [α − s_p]₊ and of [s_n − β]₊.

    r⁺_i counts positives by the exact step. r⁻_i = Σ_n H(s_n − s_i) with H(t) = σ(t/τ) for t ≤ 0,
    0.5 + σ(t/τ) for 0 < t ≤ δ, and ρ(t − δ) + 1.44 beyond. `calibration` weighs the two means.

    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 0, 1]))
    >>> roadmap(pairs, calibration=0.0)  # r⁻ = 100 * 0.15 + 1.44, and 100 * 0.31 + 1.44
    tensor([0.9427, 0.9701, 0.0000])
    """
    index, mask, above = spread_positives(pairs)
    step = Step(temperature, jump=0.5, bend=delta, slope=rho, level=1.44)
    _, negatives = count_above(pairs, index, step)
    rank = 1 + above
    precision = masked_mean(rank / (rank + negatives), mask)
    terms = torch.where(mask.any(dim=1), 1 - precision, 0.0)
    pull = masked_mean((alpha - pairs.similarity).relu(), pairs.positive)
    push = masked_mean((pairs.similarity - beta).relu(), pairs.negative)
    return terms + calibration * (pull + push)


class Roadmap(Loss):
    """ROADMAP: an upper bound of 1 − AP whose gradient never vanishes, and calibrated similarities.

    A negative above a positive costs the more the farther it is above, in place of the flat end of a sigmoid,
    so every wrong order is corrected. The AP of a batch is too good; the calibration term, which puts all
    positives above α and all negatives below β, makes it comparable between batches.

    From: Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021;
    τ = 0.01, ρ = 100, δ = 0.05, α = 0.9, β = 0.6. The paper weighs the two parts by 1 − λ and λ = 1/2, which
    is half of this, whose parts have the weights 1 and `calibration`.

    Prefer it to `SmoothAP` where the whole list counts. Cost and the limit of 256 positives are as there. The
    calibration averages over all of a query's pairs, as the paper has it; the authors' code averages over the
    batch's active pairs.

    Args:
        temperature: τ of the sigmoid.
        rho: ρ, slope of the cost of negatives that are above by more than δ.
        delta: δ, where the slope begins.
        calibration: weight of the calibration.
        alpha: the similarity that positives should have.
        beta: the similarity that negatives should stay below.
        reduction: over queries.

    >>> points = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> Roadmap()(points, torch.tensor([0, 0, 1]))
    tensor(1.1176)
    """

    def __init__(
        self,
        temperature: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        calibration: float = 1.0,
        alpha: float = 0.9,
        beta: float = 0.6,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        if not temperature > 0:
            raise UserError(f"Roadmap(temperature={temperature}): temperature must be positive")
        for name, value in (("rho", rho), ("delta", delta), ("calibration", calibration)):
            if not 0 <= value < float("inf"):
                raise UserError(f"Roadmap({name}={value}): need 0 <= {name} < infinity")
        if not (-1 <= alpha <= 1 and -1 <= beta <= 1):
            raise UserError(f"Roadmap(alpha={alpha}, beta={beta}): both are cosines, from -1 to 1")
        self.temperature = temperature
        self.rho = rho
        self.delta = delta
        self.calibration = calibration
        self.alpha = alpha
        self.beta = beta

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: the bound of 1 − AP of each query, and its calibration."""
        return roadmap(pairs, self.temperature, self.rho, self.delta, self.calibration, self.alpha, self.beta)
