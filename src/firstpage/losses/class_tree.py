"""The tree of classes of the hierarchical triplet loss: which classes lie close, and how close."""

import torch
from torch import Tensor, nn

from firstpage.errors import UserError
from firstpage.pairs import full_precision, unit

BLOCK = 2**24  # distances of classes at a time


class ClassTree(nn.Module):
    """A tree that merges classes from the bottom up, by the mean distance of their images.

    From: Ge et al., Deep Metric Learning with Hierarchical Triplet Loss, ECCV 2018, §3.1. All distances are
    squared, of unit vectors, so that they lie in 0…4. Two classes are as far apart as their images are on
    average. The spread s_c of a class is the mean distance of its own images, and d₀ the mean spread. At
    level l, classes closer than d_l = l (4 − d₀) / L + d₀ are one node, and so are all that such steps
    connect; at level L all classes are.

    Nothing of the size of classes² is kept: the tree is the node of each class at each level. It consists of
    buffers, so a checkpoint has it. Before `build`, all thresholds and spreads are 0.

    Args:
        classes: Number of classes. Labels must be below it.
        levels: L.

    Attributes:
        nodes: [L + 1, classes] The node of each class at each level, named by the least class in it.
        thresholds: [L + 1] d_l.
        spread: [classes] s_c; 0 for a class of fewer than two images.

    >>> tree = ClassTree(classes=3, levels=4)
    >>> vectors = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.6, 0.8], [-1.0, 0.0], [-1.0, 0.0]])
    >>> tree.build(vectors, torch.tensor([0, 0, 1, 1, 2, 2]))
    >>> tree.thresholds
    tensor([0.1333, 1.1000, 2.0667, 3.0333, 4.0000])
    >>> tree.level(torch.tensor([0, 1]), torch.tensor([0, 1, 2]))
    tensor([[0, 1, 4],
            [1, 0, 4]])
    """

    nodes: Tensor
    thresholds: Tensor
    spread: Tensor

    def __init__(self, classes: int, levels: int = 16) -> None:
        super().__init__()
        if classes < 1 or levels < 1:
            raise UserError(f"ClassTree(classes={classes}, levels={levels}): both must be at least 1")
        self.register_buffer("nodes", torch.arange(classes).repeat(levels + 1, 1))
        self.register_buffer("thresholds", torch.zeros(levels + 1))
        self.register_buffer("spread", torch.zeros(classes))

    @torch.no_grad()
    def build(self, vectors: Tensor, labels: Tensor) -> None:
        """Build the tree of these images.

        Args:
            vectors: [N, D] Their embeddings.
            labels: [N] Their classes.
        """
        classes, levels = self.nodes.shape[1], len(self.thresholds) - 1
        with full_precision(vectors):
            means, counts = class_means(vectors, labels, classes)
            # The mean over all pairs of images is that of their means; pairs of an image and itself are out.
            several = counts > 1
            spread = (2 - 2 * means.square().sum(dim=1)) * counts / (counts - 1).clamp_min(1)
            spread = torch.where(several, spread, 0.0)
            lowest = spread.sum() / several.sum().clamp_min(1)
            steps = torch.arange(levels + 1, device=means.device)
            thresholds = steps * (4 - lowest) / levels + lowest
            node, nodes = torch.arange(classes, device=means.device), []
            for level in range(levels):
                node = _merge(means, counts > 0, thresholds[level], node)
                nodes.append(node)
        self.spread.copy_(spread)
        self.thresholds.copy_(thresholds)
        self.nodes.copy_(torch.stack([*nodes, torch.zeros_like(node)]))

    def level(self, classes: Tensor, others: Tensor) -> Tensor:
        """Return the lowest level at which one of `classes` [P] and one of `others` [Q] are one node, [P, Q].

        >>> ClassTree(classes=3, levels=4).level(torch.tensor([1]), torch.tensor([0, 1]))
        tensor([[4, 0]])
        """
        apart = torch.zeros(len(classes), len(others), dtype=torch.int16, device=classes.device)
        for nodes in self.nodes[:-1]:  # what is one node at a level is one at all above it
            apart += nodes[classes][:, None] != nodes[others][None, :]
        return apart.long()

    def distance(self, classes: Tensor, others: Tensor) -> Tensor:
        """Return the threshold of that level, d_H [P, Q].

        >>> ClassTree(classes=3).distance(torch.tensor([1]), torch.tensor([0, 1]))
        tensor([[0., 0.]])
        """
        return self.thresholds[self.level(classes, others)]


def class_means(vectors: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean unit vector of each class [classes, D], 0 for one without images, and its images.

    >>> means, counts = class_means(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1]), 2)
    >>> means, counts
    (tensor([[0.0000, 0.0000],
            [0.5000, 0.5000]]), tensor([0, 2]))
    """
    counts = torch.bincount(labels, minlength=classes)
    sums = torch.zeros(classes, vectors.shape[1], dtype=torch.float64, device=vectors.device)
    sums.index_add_(0, labels, unit(vectors).double())
    return (sums / counts.clamp_min(1)[:, None]).to(vectors.dtype), counts


def nearest_classes(vectors: Tensor, labels: Tensor, classes: int, count: int) -> Tensor:
    """Return the classes nearest to each, the nearest first: [classes, count], or all others if fewer.

    Their distance is the mean distance of their images, as in the tree. Classes without images are last.

    >>> vectors = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> nearest_classes(vectors, torch.tensor([0, 1, 2]), classes=3, count=2)
    tensor([[1, 2],
            [0, 2],
            [1, 0]])
    """
    with full_precision(vectors):
        means, counts = class_means(vectors, labels, classes)
        found = []
        for rows in _blocks(classes, means.device):
            similarity = (means[rows] @ means.T).masked_fill(counts == 0, -2.0)
            similarity[torch.arange(len(rows)), rows] = -3.0  # a class is no neighbor of itself
            order = similarity.sort(dim=1, descending=True, stable=True).indices
            found.append(order[:, : min(count, classes - 1)])
    return torch.cat(found)


def _merge(means: Tensor, present: Tensor, threshold: Tensor, node: Tensor) -> Tensor:
    """Return the node of each class [C] when nodes with classes closer than a threshold are merged.

    A node is named by its least class. In each round every node joins the least one that it touches.
    """
    classes = len(node)
    while True:
        least = []
        for rows in _blocks(classes, node.device):
            close = (2 - 2 * means[rows] @ means.T < threshold) & present[rows, None] & present
            least.append(torch.where(close, node, classes).amin(dim=1))
        joined = torch.minimum(torch.cat(least), node)  # of each class
        target = torch.arange(classes, device=node.device).scatter_reduce(0, node, joined, "amin")
        while not torch.equal(target, target[target]):  # a node that is joined may join another itself
            target = target[target]
        if torch.equal(target[node], node):
            return node
        node = target[node]


def _blocks(classes: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return all classes, as many at a time as can be compared with all others at once."""
    return torch.arange(classes, device=device).tensor_split(-(-(classes**2) // BLOCK))
