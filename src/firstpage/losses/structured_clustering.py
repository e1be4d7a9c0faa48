"""Structured clustering loss by facility location (Struct Clust)."""

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction
from firstpage.pairs import Pairs


def structured_clustering(pairs: Pairs, gamma: float = 1.0, refinements: int = 2) -> Tensor:
    """[Q]: terms that add up to [max_S {F(S) + γ(1 − NMI(S, y))} − F̃(y)]₊ (Ranked List, Eq. 6 and 7).

    F(S) = −Σ_i min_{j∈S} d_ij over |S| = classes facilities; F̃ takes the best single medoid of each class.
    S is searched for greedily and refined by swaps, without gradient.

    >>> points = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.0, 1.0], [0.28, 0.96]])
    >>> structured_clustering(Pairs.of(points, torch.tensor([0, 0, 1, 1]))).sum()  # clusters as it should
    tensor(0.)
    >>> structured_clustering(Pairs.of(points, torch.tensor([0, 1, 0, 1]))).sum() > 1
    tensor(True)
    """
    distance = pairs.distance
    assigned, medoid, served, information = _facilities(
        distance.detach(), pairs.labels, pairs.candidate_labels, gamma, refinements
    )
    to_facility = distance.gather(1, assigned[:, None]).squeeze(1)
    to_medoid = distance.gather(1, medoid[:, None]).squeeze(1)
    spread = gamma * (1 - information) / served.sum().clamp_min(1)
    terms = torch.where(served, to_medoid - to_facility + spread, 0.0)
    return terms * (terms.detach().sum() > 0)


class StructuredClustering(Loss):
    """Structured clustering: no other clustering of the batch should beat the true one.

    From: Oh Song et al., Deep Metric Learning via Facility Location, CVPR 2017; Ranked List, Eq. 6 and 7.

    Prefer it when clustering quality (NMI) is what you are measured by. It is the one loss here with a loop,
    because a greedy search is one: a step for each class, and again for each in every round of swaps, each
    O(N²) and each waiting for the device to tell what it chose. A medoid serves itself, so here an image is
    compared with itself, at distance 0. Ranked List describes the authors' search as one over a random sample
    of candidates a step; this one tries them all.

    Args:
        gamma: weight of the clustering error 1 − NMI.
        refinements: rounds of swaps after the greedy search; they end early when nothing improves.
        reduction: over queries; the paper's loss is the sum.

    >>> points = torch.tensor([[1.0, 0.0], [0.96, 0.28], [0.0, 1.0], [0.28, 0.96]])
    >>> StructuredClustering()(points, torch.tensor([0, 0, 1, 1]))
    tensor(0.)
    """

    def __init__(self, gamma: float = 1.0, refinements: int = 2, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        if not gamma >= 0:
            raise UserError(f"StructuredClustering(gamma={gamma}): gamma must not be negative")
        if refinements < 0:
            raise UserError(f"StructuredClustering(refinements={refinements}): must not be negative")
        self.gamma = gamma
        self.refinements = refinements

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: each query's part of the difference between the best wrong clustering and the true one."""
        return structured_clustering(pairs, self.gamma, self.refinements)


@torch.library.custom_op("firstpage::facilities", mutates_args=())
def _facilities(
    distance: Tensor, labels: Tensor, candidate_labels: Tensor, gamma: float, refinements: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The search, opaque to the compiler: facility, class medoid and "is served" of each query, and the NMI.

    Queries without a candidate of their class have no true clustering and are left out (not served).
    """
    served = (labels[:, None] == candidate_labels[None, :]).any(dim=1)
    assigned = torch.zeros_like(labels, dtype=torch.long)
    medoid = torch.zeros_like(assigned)
    information = distance.new_ones(())
    if served.any():
        search = _Search(distance[served], labels[served], gamma)
        chosen, information = search.run(refinements)
        assigned[served] = chosen[search.distance[:, chosen].argmin(dim=1)]
        own = labels[served][:, None] == candidate_labels[None, :]
        total = torch.zeros_like(search.distance[: search.classes]).index_add_(
            0, search.truth, search.distance
        )
        medoid[served] = total[search.truth].masked_fill(~own, torch.inf).argmin(dim=1)
    return assigned, medoid, served, information


@_facilities.register_fake
def _facilities_shapes(
    distance: Tensor, labels: Tensor, candidate_labels: Tensor, gamma: float, refinements: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    index = torch.empty_like(labels, dtype=torch.long)
    return index, torch.empty_like(index), torch.empty_like(index, dtype=torch.bool), distance.new_empty(())


class _Search:
    """Loss-augmented facility location: maximize F(S) + γ(1 − NMI(S, y))."""

    def __init__(self, distance: Tensor, labels: Tensor, gamma: float) -> None:
        self.distance = distance  # [Q, C]
        self.gamma = gamma
        _, self.truth, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        self.classes = len(counts)
        self.truth_entropy = self._entropy(_xlogx(counts.to(distance)).sum())

    def run(self, refinements: int) -> tuple[Tensor, Tensor]:
        """The chosen facilities [S] and their NMI with the truth."""
        chosen: list[int] = []
        best = information = self.distance.new_zeros(())
        for _ in range(min(self.classes, self.distance.shape[1])):
            place, best, information = self._best_addition(chosen)
            chosen.append(place)
        for _ in range(refinements):
            changed = False
            for position in range(len(chosen)):
                rest = chosen[:position] + chosen[position + 1 :]
                place, value, nmi = self._best_addition(rest)
                if value > best + 1e-6:
                    chosen[position], best, information, changed = place, value, nmi, True
            if not changed:
                break
        return torch.tensor(chosen, device=self.distance.device), information

    def _best_addition(self, chosen: list[int]) -> tuple[int, Tensor, Tensor]:
        """The candidate whose addition to `chosen` scores highest, its score and its NMI.

        All candidates are tried at once. Adding one moves to it the queries it is closer to; the NMI follows
        from how the counts of clusters and of (cluster, class) cells change.
        """
        candidates = self.distance.shape[1]
        if chosen:
            nearest, cluster = self.distance[:, chosen].min(dim=1)
            moved = self.distance < nearest[:, None]  # [Q, C]
            value = -torch.minimum(self.distance, nearest[:, None]).sum(dim=0)
        else:
            cluster = torch.zeros_like(self.truth)
            moved = torch.ones_like(self.distance, dtype=torch.bool)
            value = -self.distance.sum(dim=0)
        moving = moved.to(self.distance)
        _, cell = torch.unique(cluster * self.classes + self.truth, return_inverse=True)

        def left(index: Tensor) -> Tensor:  # Σ n log n of the old groups, less those who moved, [C]
            stay = torch.zeros(int(index.max()) + 1, candidates, dtype=moving.dtype, device=moving.device)
            return _xlogx(stay.index_add_(0, index, 1 - moving)).sum(dim=0)

        arrived = torch.zeros(self.classes, candidates, dtype=moving.dtype, device=moving.device)
        arrived.index_add_(0, self.truth, moving)  # the new cluster's cells
        cells = self._entropy(left(cell) + _xlogx(arrived).sum(dim=0))
        clusters = self._entropy(left(cluster) + _xlogx(moving.sum(dim=0)))
        nmi = self._nmi(clusters, cells)
        score = value + self.gamma * (1 - nmi)
        score[chosen] = -torch.inf
        place = int(score.argmax())
        return place, score[place], nmi[place]

    def _entropy(self, sum_of_xlogx: Tensor) -> Tensor:
        """H of groups with Σ n log n = `sum_of_xlogx`, in nats."""
        queries = torch.tensor(
            float(len(self.distance)), dtype=self.distance.dtype, device=self.distance.device
        )
        return (queries.log() - sum_of_xlogx / queries).clamp_min(0)

    def _nmi(self, clusters: Tensor, cells: Tensor) -> Tensor:
        """Mutual information over the geometric mean of the two entropies; 1 if both are 0, 0 if one is."""
        tiny = 1e-6
        mutual = (clusters + self.truth_entropy - cells).clamp_min(0)
        nmi = mutual / (clusters * self.truth_entropy).clamp_min(tiny**2).sqrt()
        trivial = (clusters < tiny) | (self.truth_entropy < tiny)
        both = (clusters < tiny) & (self.truth_entropy < tiny)
        return torch.where(trivial, both.to(nmi), nmi.clamp_max(1))


def _xlogx(count: Tensor) -> Tensor:
    return torch.xlogy(count, count)
