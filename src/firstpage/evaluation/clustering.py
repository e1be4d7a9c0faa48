"""Clustering: k-means over the embeddings, and how well its clusters agree with the classes (METHODS §8)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.evaluation.partitions import agreement
from firstpage.evaluation.vectors import Numbers, as_labeled, inverse_lengths
from firstpage.pairs import full_precision

__all__ = ["Clustering", "cluster"]

_BLOCK = 2**26  # distances that exist at a time
_ROUNDS = 128  # in which the first centers are drawn


@dataclass(frozen=True, eq=False)
class Clustering:
    """How well the clusters of the embeddings agree with their classes, in percent.

    Attributes:
        nmi: normalized mutual information, by the geometric mean of the entropies.
        nmi_arithmetic: the same by their arithmetic mean.
        ami: adjusted mutual information: what a random partition would reach is taken off.
        f1: pairwise F1.
        assignment: [N] the cluster of each image.
        clusters: how many there were to be; some may be empty where images coincide.
        engine: what ran k-means, "torch" or "faiss".

    >>> found = cluster(torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2))
    >>> found.nmi, found.row()["F1"]
    (100.0, 100.0)
    """

    nmi: float
    nmi_arithmetic: float
    ami: float
    f1: float
    assignment: Tensor
    clusters: int
    engine: str

    def row(self) -> dict[str, float]:
        """The figures by their usual names.

        >>> list(cluster(torch.eye(3), torch.tensor([0, 0, 1])).row())
        ['NMI', 'NMI arithmetic', 'AMI', 'F1']
        """
        return {"NMI": self.nmi, "NMI arithmetic": self.nmi_arithmetic, "AMI": self.ami, "F1": self.f1}


@torch.no_grad()
def cluster(
    embeddings: Numbers,
    labels: Numbers,
    clusters: int | None = None,
    *,
    seed: int = 0,
    tries: int = 1,
    iterations: int = 50,
    engine: Literal["auto", "torch", "faiss"] = "auto",
) -> Clustering:
    """Cluster the directions of the embeddings by k-means and compare the clusters with the classes.

    Args:
        embeddings: [N, D], a tensor or an array. They need not be normalized.
        labels: [N] their classes (or super-classes), any integers.
        clusters: how many; as many as there are classes if left out.
        seed: of the first centers. The same seed gives the same clusters.
        tries: k-means runs from different centers, of which the tightest counts.
        iterations: at most; a run ends when no image changes its cluster.
        engine: FAISS for embeddings on the CPU where it is installed, torch everywhere else ("auto"), or one
            of both by name. They start from different centers, so their figures differ a little.

    Raises:
        UserError: wrong shapes, NaN or a zero vector, one class only, or a number of clusters, tries or
            iterations that cannot be.

    >>> points = torch.cat([torch.eye(3), torch.eye(3) + 0.1])
    >>> cluster(points, torch.tensor([0, 1, 2, 0, 1, 2])).assignment.unique().tolist()
    [0, 1, 2]
    """
    embeddings, labels = as_labeled("embeddings", embeddings, "labels", labels)
    classes = len(torch.unique(labels))
    if classes == 1:
        raise UserError(f"labels: all {len(labels)} are of one class: there is nothing to tell apart")
    clusters = classes if clusters is None else clusters
    if not 1 <= clusters <= len(labels):
        raise UserError(f"clusters={clusters}: give 1 to {len(labels)}, the number of embeddings")
    if tries < 1 or iterations < 1:
        raise UserError(f"tries={tries}, iterations={iterations}: give at least 1 of each")
    if engine not in ("auto", "torch", "faiss"):
        raise UserError(f"engine={engine!r}: give 'auto', 'torch' or 'faiss'")
    if engine == "auto":
        engine = "faiss" if embeddings.device.type == "cpu" and find_spec("faiss") else "torch"
    with full_precision(embeddings):
        points = (embeddings * inverse_lengths("embeddings", embeddings)).float()
        run = _faiss if engine == "faiss" else _torch
        assignment = run(points, clusters, seed, tries, iterations).cpu()
    nmi, nmi_arithmetic, ami, f1 = agreement(assignment, labels).values()
    return Clustering(nmi, nmi_arithmetic, ami, f1, assignment, clusters, engine)


def _faiss(points: Tensor, clusters: int, seed: int, tries: int, iterations: int) -> Tensor:
    """[N] clusters by FAISS, on the CPU."""
    try:
        faiss = import_module("faiss")
    except ImportError:
        raise UserError(
            "engine='faiss': FAISS is not installed: pip install faiss-cpu, or use 'torch'"
        ) from None
    table = points.cpu().numpy()
    means = faiss.Kmeans(
        table.shape[1],
        clusters,
        niter=iterations,
        nredo=tries,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(table),  # it would look at 256 a cluster
    )
    means.train(table)
    return torch.from_numpy(means.index.search(table, 1)[1][:, 0])


def _torch(points: Tensor, clusters: int, seed: int, tries: int, iterations: int) -> Tensor:
    """[N] clusters of the tightest of several runs."""
    # The draws are made on the CPU: the same on every device.
    generator = torch.Generator().manual_seed(seed)
    runs = [_lloyd(points, _first_centers(points, clusters, generator), iterations) for _ in range(tries)]
    return min(runs, key=lambda run: run[1].item())[0]


def _first_centers(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """[clusters, D] images drawn with probability ∝ d², their squared distance to the nearest one so far.

    Arthur & Vassilvitskii (2007), one at a time up to 128 clusters; more are drawn several at a time, in 128
    rounds (as Bahmani et al., 2012, do), which costs no more than assigning once.
    """
    each = -(-clusters // _ROUNDS)
    chosen = torch.randint(len(points), (1,), generator=generator).to(points.device)
    nearest = _nearest(points, points[chosen])[1]
    while len(chosen) < clusters:
        # The largest of log w + Gumbel noise are a draw without replacement, and nobody waits for the device.
        noise = torch.rand(len(points), generator=generator, dtype=torch.float64).log().neg().log().neg()
        # A chosen image is at distance 0; it may come again only when no other is left.
        weight = nearest.double().index_fill(0, chosen, 0).clamp(min=1e-30).log()
        score = (weight + noise.to(points.device)).index_fill(0, chosen, -torch.inf)
        drawn = score.topk(min(each, clusters - len(chosen))).indices
        nearest = torch.minimum(nearest, _nearest(points, points[drawn])[1])
        chosen = torch.cat([chosen, drawn])
    return points[chosen]


def _lloyd(points: Tensor, centers: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """[N] the cluster of each image when nothing changes any more, and the sum of squared distances."""
    before = None
    for step in range(iterations + 1):
        assignment, distance = _nearest(points, centers)
        if step == iterations or (before is not None and bool((assignment == before).all())):
            break
        before = assignment
        # Added in the order of a stable sort: atomic additions would round differently in every run.
        order = assignment.argsort(stable=True)
        counts = torch.bincount(assignment, minlength=len(centers))
        sums = torch.segment_reduce(points[order], "sum", lengths=counts, axis=0, unsafe=True)
        centers = sums / counts.clamp(min=1)[:, None]
        empty = (counts == 0).nonzero().squeeze(1)
        if len(empty):  # an empty cluster begins anew with an image that fits its own worst
            centers[empty] = points[distance.topk(len(empty)).indices]
    return assignment, distance.double().sum()


def _nearest(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """[N] the nearest center of each point (of equal ones the first), and its squared distance."""
    bias = centers.square().sum(dim=1)
    best = []
    for part in torch.split(points, max(1, _BLOCK // len(centers))):
        best.append(torch.addmm(bias, part, centers.T, alpha=-2).min(dim=1))
    distance = torch.cat([found.values for found in best]) + points.square().sum(dim=1)
    return torch.cat([found.indices for found in best]), distance.clamp(min=0)
