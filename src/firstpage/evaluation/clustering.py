"""Clustering: k-means on the embeddings, and how well its clusters agree with the classes (METHODS §8)."""

from dataclasses import dataclass
from importlib import import_module
from typing import Literal

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.evaluation.inputs import ArrayLike, as_labeled_vectors, inverse_norms
from firstpage.evaluation.partitions import agreement
from firstpage.pairs import full_precision

_BLOCK = 2**26  # distances computed at a time
_ROUNDS = 128  # of sampling the initial centers


@dataclass(frozen=True, eq=False)
class Clustering:
    """How well the clusters of the embeddings agree with the classes, in percent.

    Attributes:
        nmi: Normalized mutual information, by the geometric mean of the entropies.
        nmi_arithmetic: Normalized mutual information, by the arithmetic mean of the entropies.
        ami: Adjusted mutual information: 0 in expectation for a random partition.
        f1: Pairwise F1.
        assignment: [N] cluster of each image.
        clusters: Number of clusters. Some may be empty if images coincide.
        engine: Implementation of k-means, "torch" or "faiss".

    >>> result = cluster(torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2))
    >>> result.nmi, result.metrics()["F1"]
    (100.0, 100.0)
    """

    nmi: float
    nmi_arithmetic: float
    ami: float
    f1: float
    assignment: Tensor
    clusters: int
    engine: str

    def metrics(self) -> dict[str, float]:
        """Return the metrics by their usual names.

        >>> list(cluster(torch.eye(3), torch.tensor([0, 0, 1])).metrics())
        ['NMI', 'NMI arithmetic', 'AMI', 'F1']
        """
        return {"NMI": self.nmi, "NMI arithmetic": self.nmi_arithmetic, "AMI": self.ami, "F1": self.f1}


@torch.no_grad()
def cluster(
    embeddings: ArrayLike,
    labels: ArrayLike,
    clusters: int | None = None,
    *,
    seed: int = 0,
    tries: int = 1,
    iterations: int = 50,
    engine: Literal["torch", "faiss"] = "torch",
) -> Clustering:
    """Cluster the directions of the embeddings by k-means and compare the clusters with the classes.

    Args:
        embeddings: [N, D], a tensor or an array. They need not be normalized.
        labels: [N] classes (or super-classes), any integers.
        clusters: Number of clusters. Defaults to the number of classes.
        seed: Seed of the initial centers. The same seed gives the same clusters.
        tries: Number of k-means runs from different centers, of which the one with the smallest sum of
            squared distances is returned.
        iterations: Maximum number of iterations. A run ends when no image changes its cluster.
        engine: "torch", or "faiss" on the CPU. Both start from different centers, so their metrics differ
            slightly.

    Raises:
        UserError: Wrong shapes, NaN or a zero vector, a single class, or an invalid number of clusters,
            tries or iterations.

    >>> points = torch.cat([torch.eye(3), torch.eye(3) + 0.1])
    >>> cluster(points, torch.tensor([0, 1, 2, 0, 1, 2])).assignment.unique().tolist()
    [0, 1, 2]
    """
    embeddings, labels = as_labeled_vectors("embeddings", embeddings, "labels", labels)
    classes = len(torch.unique(labels))
    if classes == 1:
        raise UserError(f"labels: all {len(labels)} are of one class; give at least two classes")
    clusters = classes if clusters is None else clusters
    if not 1 <= clusters <= len(labels):
        raise UserError(f"clusters={clusters}: must lie in 1..{len(labels)}, the number of embeddings")
    if tries < 1 or iterations < 1:
        raise UserError(f"tries={tries}, iterations={iterations}: must be at least 1 each")
    if engine not in ("torch", "faiss"):
        raise UserError(f"engine={engine!r}: choose 'torch' or 'faiss'")
    with full_precision(embeddings):
        points = (embeddings * inverse_norms("embeddings", embeddings)).float()
        run = _cluster_faiss if engine == "faiss" else _cluster_torch
        assignment = run(points, clusters, seed, tries, iterations).cpu()
    nmi, nmi_arithmetic, ami, f1 = agreement(assignment, labels).values()
    return Clustering(nmi, nmi_arithmetic, ami, f1, assignment, clusters, engine)


def _cluster_faiss(points: Tensor, clusters: int, seed: int, tries: int, iterations: int) -> Tensor:
    """[N] cluster of each point by FAISS, on the CPU."""
    try:
        faiss = import_module("faiss")
    except ImportError:
        raise UserError(
            "engine='faiss': FAISS is not installed; pip install faiss-cpu, or use 'torch'"
        ) from None
    table = points.cpu().numpy()
    kmeans = faiss.Kmeans(
        table.shape[1],
        clusters,
        niter=iterations,
        nredo=tries,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(table),  # its default is a sample of 256 per cluster
    )
    kmeans.train(table)
    return torch.from_numpy(kmeans.index.search(table, 1)[1][:, 0])


def _cluster_torch(points: Tensor, clusters: int, seed: int, tries: int, iterations: int) -> Tensor:
    """[N] cluster of each point, from the run with the smallest sum of squared distances."""
    # On the CPU: the random numbers are the same for every device.
    generator = torch.Generator().manual_seed(seed)
    runs = [_lloyd(points, _initial_centers(points, clusters, generator), iterations) for _ in range(tries)]
    return min(runs, key=lambda run: run[1].item())[0]


def _initial_centers(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """[clusters, D] images sampled with probability ∝ d², their squared distance to the nearest one so far.

    Arthur & Vassilvitskii (2007): one at a time for up to 128 clusters; more are sampled several at a time in
    128 rounds (as in Bahmani et al., 2012), which costs no more than one assignment.
    """
    each = -(-clusters // _ROUNDS)
    chosen = torch.randint(len(points), (1,), generator=generator).to(points.device)
    nearest = _nearest(points, points[chosen])[1]
    while len(chosen) < clusters:
        # The largest of log w + Gumbel noise are a sample without replacement, and the device need not sync.
        noise = torch.rand(len(points), generator=generator, dtype=torch.float64).log().neg().log().neg()
        # A chosen image is at distance 0: it is never chosen again.
        weight = nearest.double().index_fill(0, chosen, 0).clamp(min=1e-30).log()
        score = (weight + noise.to(points.device)).index_fill(0, chosen, -torch.inf)
        sampled = score.topk(min(each, clusters - len(chosen))).indices
        nearest = torch.minimum(nearest, _nearest(points, points[sampled])[1])
        chosen = torch.cat([chosen, sampled])
    return points[chosen]


def _lloyd(points: Tensor, centers: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """[N] cluster of each image after convergence, and the sum of squared distances."""
    before = None
    for step in range(iterations + 1):
        assignment, distance = _nearest(points, centers)
        if step == iterations or (before is not None and bool((assignment == before).all())):
            break
        before = assignment
        # Summed in the order of a stable sort: atomic additions would round differently in every run.
        order = assignment.argsort(stable=True)
        counts = torch.bincount(assignment, minlength=len(centers))
        sums = torch.segment_reduce(points[order], "sum", lengths=counts, axis=0, unsafe=True)
        centers = sums / counts.clamp(min=1)[:, None]
        empty = (counts == 0).nonzero().squeeze(1)
        if len(empty):  # restart empty clusters at the images farthest from their centers
            centers[empty] = points[distance.topk(len(empty)).indices]
    return assignment, distance.double().sum()


def _nearest(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """[N] nearest center of each point (the first of equally near ones), and its squared distance."""
    bias = centers.square().sum(dim=1)
    best = []
    for part in torch.split(points, max(1, _BLOCK // len(centers))):
        best.append(torch.addmm(bias, part, centers.T, alpha=-2).min(dim=1))
    distance = torch.cat([part.values for part in best]) + points.square().sum(dim=1)
    return torch.cat([part.indices for part in best]), distance.clamp(min=0)
