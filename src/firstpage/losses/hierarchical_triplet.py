"""Hierarchical triplet loss."""

from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_sum
from firstpage.losses.class_tree import ClassTree
from firstpage.losses.triplet import sum_of_hinges
from firstpage.pairs import Pairs, check_range


def hierarchical_triplet(pairs: Pairs, margin: Tensor) -> Tensor:
    """[Q]: ½ [d_ap² − d_an² + α_an]₊ of all triplets of a query, divided by the batch's triplets a query.

    The margin α [Q, C] is that of each query and each negative.

    >>> import torch
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    >>> hierarchical_triplet(pairs, torch.full((3, 3), 0.1)).mean()  # ½ of the mean of 0 and 0.42
    tensor(0.1050)
    """
    score = 2 * pairs.similarity - 2  # −d²
    violation = sum_of_hinges(score, score + margin, pairs.negative)  # [Q, C] for every positive
    triplets = (pairs.positive.sum(dim=1) * pairs.negative.sum(dim=1)).sum().clamp_min(1)
    return len(score) * masked_sum(violation, pairs.positive) / (2 * triplets)


class HierarchicalTriplet(Loss):
    """Hierarchical triplet loss: a margin for each two classes, from a tree of all classes.

    From: Ge et al., Deep Metric Learning with Hierarchical Triplet Loss (HTL), ECCV 2018, §3.2. The margin is
    α_z = β + d_H(y_a, y_n) − s_{y_a}: classes must move apart by β more than the level at which the tree
    merges them, beyond the spread of the anchor's class. So far classes are held far, and close ones are
    asked for a little more than they have. Distances are squared, as those of the tree are: a margin of up
    to 4 could not be kept otherwise.

    In training the tree is built from all training images, at the start of the run and again every
    `train.survey_every` epochs. It belongs with batches of neighboring classes, `batch.neighbors`; either can
    be used alone. Elsewhere, call `survey` yourself; before that the margin is β.

    Prefer it to `Triplet` where classes are many and batches small. It costs a pass over the training images
    each time.

    Args:
        classes: number of classes. Labels must be below it.
        beta: what classes must move apart beyond where they are.
        levels: levels of the tree above its leaves.
        reduction: over queries.

    >>> import torch
    >>> loss = HierarchicalTriplet(classes=2)
    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
    >>> loss.survey(points, torch.tensor([0, 0, 1]))
    >>> loss(points, torch.tensor([0, 0, 1]))
    tensor(0.1613)
    """

    def __init__(
        self, classes: int, beta: float = 0.1, levels: int = 16, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        if not 0 <= beta < float("inf"):
            raise UserError(f"HierarchicalTriplet(beta={beta}): need 0 <= beta < infinity")
        self.classes = classes
        self.beta = beta
        self.levels = levels
        self.tree = ClassTree(classes, levels)

    def survey(self, vectors: Tensor, labels: Tensor) -> None:
        """Build the tree from the embeddings of all training images.

        Args:
            vectors: [N, D].
            labels: [N].
        """
        check_range("labels", labels, self.classes, f"HierarchicalTriplet(classes={self.classes})")
        self.tree.build(vectors, labels)

    def margin(self, pairs: Pairs) -> Tensor:
        """[Q, C]: α of each query as anchor and each candidate as negative."""
        for name in ("labels", "candidate_labels"):
            owner = f"HierarchicalTriplet(classes={self.classes})"
            check_range(name, getattr(pairs, name), self.classes, owner)
        distance = self.tree.distance(pairs.labels, pairs.candidate_labels)
        return self.beta + distance - self.tree.spread[pairs.labels][:, None]

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: each query's share of the mean over the batch's triplets."""
        return hierarchical_triplet(pairs, self.margin(pairs).to(pairs.similarity.dtype))
