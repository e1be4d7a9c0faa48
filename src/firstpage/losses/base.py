"""What all losses share: how they are called, how they reduce, and the masked sums they are made of."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from firstpage._sphere import Context, short
from firstpage.errors import UserError
from firstpage.mining import Mined, NegativeStrategy, PositiveStrategy, Strategy, product
from firstpage.pairs import Pairs, full_precision

Reduction = Literal["mean", "sum", "none"]


class Loss(nn.Module, ABC):
    """A loss over embeddings and labels: `loss(embeddings, labels)` or against candidates of your own.

    Each query has a term; `reduction="mean"` averages them over all queries, `"sum"` adds them, `"none"`
    returns them. A query with nothing to learn has the term 0, so does a batch, and it still backpropagates.
    Terms are computed in float32 even under autocast. Losses that the papers normalize over a whole batch
    (say, by its active pairs) share that out so that the mean of the terms is the paper's figure.

    A subclass writes `terms`.

    >>> class Compactness(Loss):
    ...     "How far a query is from its positives, on average."
    ...     def terms(self, pairs):
    ...         return masked_mean(pairs.distance, pairs.positive)
    >>> Compactness()(torch.eye(3), torch.tensor([0, 0, 1]))
    tensor(0.9428)
    >>> Compactness(reduction="none")(torch.eye(3), torch.tensor([0, 0, 1]))
    tensor([1.4142, 1.4142, 0.0000])
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise UserError(f"reduction={reduction!r}: choose one of mean, sum, none")
        self.reduction = reduction

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        candidates: Tensor | None = None,
        candidate_labels: Tensor | None = None,
        *,
        image_ids: Tensor | None = None,
        candidate_ids: Tensor | None = None,
    ) -> Tensor:
        """The reduced loss of `embeddings` [Q, D] against `candidates` [C, D], or against one another.

        The arguments are those of `Pairs.of`.
        """
        return self.of(
            Pairs.of(
                embeddings,
                labels,
                candidates,
                candidate_labels,
                image_ids=image_ids,
                candidate_ids=candidate_ids,
            )
        )

    def of(self, pairs: Pairs) -> Tensor:
        """The reduced loss of pairs that are there already, so that several users share one similarity."""
        with full_precision(pairs.queries):
            terms = self.terms(pairs)
        if terms.shape != pairs.labels.shape:
            raise UserError(
                f"{type(self).__name__}.terms: got shape {tuple(terms.shape)}, need one value per query, "
                f"{tuple(pairs.labels.shape)}"
            )
        return self.reduced(terms)

    def reduced(self, terms: Tensor) -> Tensor:
        """The mean of the terms, their sum, or the terms themselves, as the loss was told."""
        if self.reduction == "none":
            return terms
        return terms.mean() if self.reduction == "mean" else terms.sum()

    @abstractmethod
    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: what each query contributes."""

    def boosting_weights(self, pairs: Pairs) -> Tensor:
        """How much the next learner of a boosted ensemble learns from each query, [Q, 1], or pair, [Q, C].

        That is how much this loss still wants to change the similarities of the learners so far: the size of
        its gradient with respect to a query's positives or its negatives, whichever is larger, over the mean
        of the queries that have one. A query that is right already has the weight 0; with a loss over
        proxies alone all are 1. A loss that is a sum over pairs can weigh each of them by overriding this:
        see `BinomialDeviance`.

        Args:
            pairs: With the similarity of the learners so far, as `Ensemble` adds it up.

        >>> from firstpage.losses import TopKPrecision
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [1.0, 0.9]])
        >>> pairs = Pairs.of(embeddings, torch.tensor([0, 0, 1, 1]))
        >>> TopKPrecision(k=1).boosting_weights(pairs).flatten()  # the last one's first result is wrong
        tensor([0., 0., 0., 1.])
        """
        with torch.enable_grad(), full_precision(pairs.similarity):
            probe = pairs.probe()
            total = self.terms(probe).sum()
            (gradient, _) = torch.autograd.grad(total, (probe.similarity, probe.queries), allow_unused=True)
        if gradient is None:
            return torch.ones_like(pairs.similarity[:, :1])
        size = torch.where(pairs.positive | pairs.negative, gradient.abs(), 0.0)
        slope = torch.maximum(masked_sum(size, pairs.positive), masked_sum(size, pairs.negative))
        mean = slope.sum() / (slope > 0).sum().clamp_min(1)
        return (slope / mean.masked_fill(mean == 0, 1.0))[:, None]

    def extra_repr(self) -> str:
        """The settings, for `print(loss)`."""
        plain = {k: v for k, v in vars(self).items() if isinstance(v, int | float | str) and k != "training"}
        return ", ".join(f"{name}={value!r}" for name, value in plain.items() if not name.startswith("_"))


class MinedLoss(Loss):
    """A loss over mined positives and negatives; a subclass writes `mined_terms`.

    Args:
        positives: name of a positive strategy, or one of your own.
        negatives: name of a negative strategy, or one of your own.
        mining: a strategy that chooses both sides at once, in place of the two above: `mining.boundary(k)`.
        generator: for strategies that draw lots; torch's own generator if left out.
        reduction: over queries.

    >>> class Difference(MinedLoss):
    ...     "How much more similar the chosen negative is than the chosen positive."
    ...     def mined_terms(self, pairs, mined):
    ...         score = mined.of_negatives(pairs.similarity) - mined.of_positives(pairs.similarity)
    ...         return masked_mean(score, mined.comparable)
    >>> Difference("easy", "hard")(torch.eye(3), torch.tensor([0, 0, 1]))
    tensor(0.)
    """

    def __init__(
        self,
        positives: str | PositiveStrategy,
        negatives: str | NegativeStrategy,
        mining: Strategy | None = None,
        generator: Generator | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        if mining is not None and not callable(mining):
            raise UserError(f"mining={mining!r}: give a strategy, such as mining.boundary(k=5, margin=0.1)")
        self.mining = mining or product(positives, negatives)
        self.generator = generator

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: what each query contributes."""
        return self.mined_terms(pairs, self.mining(pairs, self.generator))

    @abstractmethod
    def mined_terms(self, pairs: Pairs, mined: Mined) -> Tensor:
        """[Q]: what each query contributes through the images chosen for it."""


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """[Q]: each row's sum over the masked entries.

    >>> masked_sum(torch.tensor([[1.0, 2.0, torch.inf]]), torch.tensor([[True, True, False]]))
    tensor([3.])
    """
    kept = torch.where(mask, values, 0.0)
    return kept.squeeze(1) if kept.shape[1] == 1 else kept.sum(dim=1)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """[Q]: each row's mean over the masked entries, 0 where there is none.

    >>> masked_mean(torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[True, True], [False, False]]))
    tensor([2., 0.])
    """
    if mask.shape[1] == 1:  # one entry is its own mean
        return masked_sum(values, mask)
    return masked_sum(values, mask) / mask.sum(dim=1).clamp_min(1)


def masked_logsumexp(values: Tensor, mask: Tensor, dim: int = 1, scale: float = 1.0) -> Tensor:
    """The log of Σ e^(scale·x) over the masked entries; very low but finite, without gradient, if none.

    >>> masked_logsumexp(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]])) > -1e30
    tensor([ True, False])
    """
    return logsumexp_and_shares(values, mask, dim, scale)[0]


def logsumexp_and_shares(
    values: Tensor, mask: Tensor, dim: int = 1, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The same with each entry's share of its sum, the softmax over the masked entries and 0 elsewhere.

    >>> _, shares = logsumexp_and_shares(torch.zeros(1, 3), torch.tensor([[True, False, True]]))
    >>> shares
    tensor([[0.5000, 0.0000, 0.5000]])
    """
    if short(values):
        logarithm, shares = _LogSumExp.apply(values, mask, dim, scale)  # type: ignore[no-untyped-call]
        return logarithm, shares
    kept = _kept(values, mask, scale)
    return kept.logsumexp(dim), kept.softmax(dim) * mask


def _kept(values: Tensor, mask: Tensor, scale: float) -> Tensor:
    scaled = values if scale == 1 else scale * values
    return torch.where(mask, scaled, torch.finfo(values.dtype).min / 8)


class _LogSumExp(torch.autograd.Function):
    """l = log Σ e^(a·x) and the shares p = e^(a·x − l). The gradient of l is a·g·p, of p a·p(g − Σ g·p)."""

    @staticmethod
    def forward(ctx: Context, values: Tensor, mask: Tensor, dim: int, scale: float) -> tuple[Tensor, Tensor]:
        kept = _kept(values, mask, scale)
        shares, maximum = kept.softmax(dim), kept.amax(dim)
        del kept  # a large table
        logarithm = maximum - shares.amax(dim).log()  # the largest share is that of the maximum
        shares = torch.where(mask, shares, 0.0)  # a sum of nothing has no shares
        ctx.save_for_backward(shares)
        ctx.set_materialize_grads(False)
        ctx.dim, ctx.scale = dim, scale  # type: ignore[attr-defined]
        return logarithm, shares

    @staticmethod
    def backward(
        ctx: Context, of_logarithm: Tensor | None, of_shares: Tensor | None
    ) -> tuple[Tensor | None, None, None, None]:
        (shares,) = ctx.saved_tensors
        dim, scale = ctx.dim, ctx.scale  # type: ignore[attr-defined]
        gradient = None
        if of_logarithm is not None:
            gradient = (of_logarithm if scale == 1 else scale * of_logarithm).unsqueeze(dim) * shares
        if of_shares is not None:
            centered = of_shares - (of_shares * shares).sum(dim, keepdim=True)
            slope = scale * shares * centered
            gradient = slope if gradient is None else gradient + slope
        return gradient, None, None, None
