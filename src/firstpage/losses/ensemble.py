"""Ensemble: the losses of several learners, and what each of them sees."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from firstpage.errors import UserError
from firstpage.losses.base import Loss
from firstpage.mining.hardest import hardest
from firstpage.pairs import Pairs

Rule = Literal["sum", "cascade", "boost"]


class Ensemble(nn.Module):
    """The sum of the losses of several learners: embeddings of the same images by one model.

    The rule says what each learner sees. It changes the pairs, not the loss, so every loss that compares
    images can be used: the top-k precision loss as well as those of the papers. Losses over proxies do not
    look at pairs: each learner has proxies of its own, and learns from all images. (Of `first-page`, the
    rule is for the pages; the proxies anchor every learner.)

    - `sum`: all learners see all pairs. (Ranked list multilevel; ABE, with `divergence`.)
    - `cascade`: learner m sees only the hardest share of all positive pairs, those farthest apart, and of all
      negative pairs, those nearest, as the learner before it judges among those that it saw. From: Yuan et
      al., Hard-Aware Deeply Cascaded Embedding, ICCV 2017 (HDC), with the shares 1, 0.5 and 0.2. There pairs
      are ranked by their contrastive loss, which is the same order. (The released code ranks all pairs by
      the loss of learner m itself.)
    - `boost`: learner m sees all pairs, weighted by what the learners before it leave wrong: by
      `Loss.boosting_weights` at their similarity, S ← (1 − ν) S + ν s_m with ν = 2 / (m + 1). The weights
      scale gradients; the value stays that of the loss. From: Opitz et al., BIER, ICCV 2017, whose loss is
      `BinomialDeviance`.

    Args:
        losses: One for each learner. The rules other than `sum` need subclasses of `Loss`.
        rule: What each learner sees.
        shares: For `cascade`, one for each learner, the first 1, none larger than the one before.
        diversity: A term over the vectors of all learners; see `losses.diversity`.
        weight: Weight of that term.

    >>> from firstpage.losses import TopKPrecision
    >>> ensemble = Ensemble([TopKPrecision(k=1), TopKPrecision(k=1)], rule="boost")
    >>> learners = [torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]]), torch.eye(4)]
    >>> ensemble(learners, torch.tensor([0, 0, 1, 1]))
    tensor(0.4800)
    """

    def __init__(
        self,
        losses: Sequence[nn.Module],
        rule: Rule = "sum",
        shares: Sequence[float] = (1.0, 0.5, 0.2),
        diversity: nn.Module | None = None,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.losses = nn.ModuleList(losses)
        self.rule, self.shares, self.weight = rule, tuple(shares), weight
        self.diversity = diversity
        if rule == "sum":
            return
        if rule not in ("cascade", "boost"):
            raise UserError(f"ensemble.rule={rule!r}: choose one of sum, cascade, boost")
        if len(self.losses) < 2:
            raise UserError(
                f"ensemble.rule={rule!r}: the model has one learner: set model.head=split and "
                "model.learners, or ensemble.rule=sum"
            )
        for loss in self.losses:
            if not isinstance(loss, Loss):
                raise UserError(
                    f"ensemble.rule={rule!r}: {type(loss).__name__} sees no pairs: use ensemble.rule=sum, or "
                    "a subclass of firstpage.losses.Loss"
                )
        given = f"ensemble.shares={list(self.shares)}"
        if rule == "cascade" and len(self.shares) != len(self.losses):
            raise UserError(f"{given}: give one for each of the {len(self.losses)} learners")
        falling = sorted(self.shares, reverse=True) == list(self.shares)
        if rule == "cascade" and not (falling and self.shares[0] == 1 and self.shares[-1] > 0):
            raise UserError(f"{given}: begin with 1.0, and let none be larger than the one before, or 0")

    def forward(
        self,
        learners: Sequence[Tensor],
        labels: Tensor,
        candidates: Sequence[Mapping[str, Tensor]] | None = None,
    ) -> Tensor:
        """The sum of the losses, and the term of diversity.

        Args:
            learners: [Q, dim] of each learner, for the same images.
            labels: [Q] their classes.
            candidates: The further arguments of `Pairs.of`, for each learner: the same candidates, in the
                same order, as each learner embeds them.
        """
        given = [{} for _ in learners] if candidates is None else candidates
        if self.rule == "sum":
            terms = [
                loss(vectors, labels, **(more if isinstance(loss, Loss) else {}))  # others know no candidates
                for loss, vectors, more in zip(self.losses, learners, given, strict=True)
            ]
        else:
            pairs = [Pairs.of(part, labels, **more) for part, more in zip(learners, given, strict=True)]
            seen = self.cascaded(pairs) if self.rule == "cascade" else self.boosted(pairs)
            terms = [loss.of(part) for loss, part in zip(self._pair_losses, seen, strict=True)]
        total = torch.stack(terms).sum()
        return total if self.diversity is None else total + self.weight * self.diversity(learners)

    def cascaded(self, pairs: Sequence[Pairs]) -> list[Pairs]:
        """The pairs of each learner, but only the share of them that it sees.

        >>> from firstpage.losses import Contrastive
        >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), torch.tensor([0, 1, 2]))
        >>> ensemble = Ensemble([Contrastive(), Contrastive()], "cascade", shares=[1.0, 0.5])
        >>> [part.negative.sum().item() for part in ensemble.cascaded([pairs, pairs])]  # with a tie
        [6, 4]
        """
        positive, negative = pairs[0].positive, pairs[0].negative
        positives, negatives = positive.sum(), negative.sum()
        seen = [pairs[0]]
        for share, judge, part in zip(self.shares[1:], pairs, pairs[1:], strict=False):
            positive = hardest(-judge.similarity, positive, _count(share, positives))
            negative = hardest(judge.similarity, negative, _count(share, negatives))
            seen.append(replace(part, positive=positive, negative=negative))
        return seen

    def boosted(self, pairs: Sequence[Pairs]) -> list[Pairs]:
        """The pairs of each learner, weighted by what the learners before it leave wrong.

        >>> from firstpage.losses import BinomialDeviance
        >>> pairs = Pairs.of(torch.eye(2), torch.tensor([0, 0]))
        >>> Ensemble([BinomialDeviance(), BinomialDeviance()], "boost").boosted([pairs, pairs])[1].weights
        tensor([[0.0000, 0.7311],
                [0.7311, 0.0000]])
        """
        seen, score = [pairs[0]], pairs[0].similarity.detach()
        for number, (loss, part) in enumerate(zip(self._pair_losses[1:], pairs[1:], strict=True), 2):
            weights = loss.boosting_weights(part.probe(score)).detach()
            seen.append(part.weighted(weights))
            step = 2 / (number + 1)
            score = (1 - step) * score + step * part.similarity.detach()
        return seen

    @property
    def _pair_losses(self) -> list[Loss]:
        return [loss for loss in self.losses if isinstance(loss, Loss)]

    def __len__(self) -> int:
        return len(self.losses)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.losses)

    def __getitem__(self, number: int) -> nn.Module:
        return self.losses[number]

    def extra_repr(self) -> str:
        """The rule, for `print(ensemble)`."""
        return f"rule={self.rule!r}" + (f", shares={self.shares}" if self.rule == "cascade" else "")


def _count(share: float, pairs: Tensor) -> Tensor:
    """How many pairs a share is, rounded up: on the device, where their number is."""
    return (share * pairs.double() - 1e-6).ceil().long()
