"""What a mining strategy returns: for each query, the positives and negatives to look at."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from firstpage.pairs import Pairs


@dataclass(frozen=True, eq=False)
class Mined:
    """The positives and negatives that a strategy chose, in dense form: nothing here leaves the device.

    Query q looks at the candidates `positives[q, m]` for which `positive_mask[q, m]` holds, likewise its
    negatives. An index of None means "column j is candidate j", that is, a subset of all candidates given
    by its mask alone. If `paired`, negative m belongs to positive m; else every positive of a query meets
    every negative of it.

    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
    >>> everything = Mined(None, pairs.positive, None, pairs.negative, paired=False)
    >>> everything.triplets()
    (tensor([0, 1]), tensor([1, 0]), tensor([2, 2]))
    """

    positives: Tensor | None  # [Q, M] index of a candidate
    positive_mask: Tensor  # [Q, M]
    negatives: Tensor | None  # [Q, K]
    negative_mask: Tensor  # [Q, K]
    paired: bool

    def of_positives(self, matrix: Tensor) -> Tensor:
        """[Q, M]: the entries of a [Q, C] matrix that belong to the chosen positives.

        >>> mined = Mined(torch.tensor([[2]]), torch.tensor([[True]]), None, torch.ones(1, 3).bool(), False)
        >>> mined.of_positives(torch.tensor([[0.1, 0.2, 0.3]]))
        tensor([[0.3000]])
        """
        return matrix if self.positives is None else matrix.gather(1, self.positives)

    def of_negatives(self, matrix: Tensor) -> Tensor:
        """[Q, K]: the entries of a [Q, C] matrix that belong to the chosen negatives.

        >>> mined = Mined(None, torch.ones(1, 3).bool(), torch.tensor([[1]]), torch.tensor([[True]]), False)
        >>> mined.of_negatives(torch.tensor([[0.1, 0.2, 0.3]]))
        tensor([[0.2000]])
        """
        return matrix if self.negatives is None else matrix.gather(1, self.negatives)

    def of_both(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """The entries of the positives [Q, M] and of the negatives [Q, K], gathered at once where both are.

        >>> mined = Mined(torch.tensor([[2]]), torch.tensor([[True]]), None, torch.ones(1, 3).bool(), False)
        >>> mined.of_both(torch.tensor([[0.1, 0.2, 0.3]]))
        (tensor([[0.3000]]), tensor([[0.1000, 0.2000, 0.3000]]))
        """
        if self.positives is None or self.negatives is None:
            return self.of_positives(matrix), self.of_negatives(matrix)
        both = matrix.gather(1, torch.cat([self.positives, self.negatives], dim=1))
        sizes = self.positives.shape[1], self.negatives.shape[1]
        positive, negative = both.split_with_sizes(sizes, dim=1)
        return positive, negative

    @property
    def comparable(self) -> Tensor:
        """[Q, M]: the chosen positives that have a negative to be compared with.

        >>> mined = Mined(None, torch.tensor([[True], [True]]), None, torch.tensor([[True], [False]]), True)
        >>> mined.comparable
        tensor([[ True],
                [False]])
        """
        if self.paired:
            return self.positive_mask & self.negative_mask
        return self.positive_mask & self.negative_mask.any(dim=1, keepdim=True)

    def triplets(self) -> tuple[Tensor, Tensor, Tensor]:
        """Index triplets (queries, positives, negatives), for use with other code.

        Their number depends on the data, so this waits for the device; losses use the dense form.

        >>> pairs = Pairs.of(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> everything = Mined(None, pairs.positive, None, pairs.negative, paired=False)
        >>> torch.stack(everything.triplets(), dim=1)[:3].tolist()
        [[0, 1, 2], [0, 1, 3], [1, 0, 2]]
        """
        query, m = self.comparable.nonzero(as_tuple=True)
        positive = m if self.positives is None else self.positives[query, m]
        if self.paired:
            negative = m if self.negatives is None else self.negatives[query, m]
            return query, positive, negative
        row, k = self.negative_mask[query].nonzero(as_tuple=True)
        query, positive = query[row], positive[row]
        return query, positive, k if self.negatives is None else self.negatives[query, k]

    def pairs(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Index pairs ((queries, positives), (queries, negatives)), for use with other code.

        >>> pairs = Pairs.of(torch.eye(3), torch.tensor([0, 0, 1]))
        >>> Mined(None, pairs.positive, None, pairs.negative, False).pairs()
        ((tensor([0, 1]), tensor([1, 0])), (tensor([0, 1, 2, 2]), tensor([2, 2, 0, 1])))
        """
        query, m = self.positive_mask.nonzero(as_tuple=True)
        other, k = self.negative_mask.nonzero(as_tuple=True)
        return (
            (query, m if self.positives is None else self.positives[query, m]),
            (other, k if self.negatives is None else self.negatives[other, k]),
        )


Strategy = Callable[[Pairs, Generator | None], Mined]
"""Anything that chooses: `strategy(pairs, generator)` returns a `Mined`."""
