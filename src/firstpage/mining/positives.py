"""Positive strategies: which images of its own class a query looks at.

| name   | looks at                     | known from                                        |
|--------|------------------------------|---------------------------------------------------|
| all    | every positive               | batch all; Sampling Matters                       |
| easy   | the most similar one         | Easy Positive, §3.4                               |
| hard   | the least similar one        | In Defense of the Triplet Loss; Easy Positive §3.3 |
| random | one, all equally likely      | FaceNet-style triplets                            |
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from firstpage.pairs import Pairs

PositiveStrategy = Callable[[Pairs, Generator | None], tuple[Tensor | None, Tensor]]
"""Returns the index [Q, M] of the chosen candidates (None: column j is candidate j) and its mask [Q, M]."""


def _all(pairs: Pairs, generator: Generator | None) -> tuple[Tensor | None, Tensor]:
    return None, pairs.positive


def _easy(pairs: Pairs, generator: Generator | None) -> tuple[Tensor | None, Tensor]:
    return _best(pairs.similarity.detach(), pairs.positive)


def _hard(pairs: Pairs, generator: Generator | None) -> tuple[Tensor | None, Tensor]:
    worst, index = torch.where(pairs.positive, pairs.similarity.detach(), torch.inf).min(dim=1, keepdim=True)
    return index, worst != torch.inf


def _random(pairs: Pairs, generator: Generator | None) -> tuple[Tensor | None, Tensor]:
    lots = torch.rand(pairs.positive.shape, generator=generator, device=pairs.positive.device)
    return _best(lots, pairs.positive)


def _best(score: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The allowed candidate with the largest score [Q, 1], and whether there is one [Q, 1]."""
    best, index = torch.where(allowed, score, -torch.inf).max(dim=1, keepdim=True)
    return index, best != -torch.inf  # unlike a comparison, true of NaN, which must not go unnoticed


POSITIVES: dict[str, PositiveStrategy] = {"all": _all, "easy": _easy, "hard": _hard, "random": _random}
