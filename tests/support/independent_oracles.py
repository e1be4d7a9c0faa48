"""What is new in HDC, BIER, ABE, HTL, PDDM and DREML, again as plain loops over floats.

Written from the publications before the implementation was read, and without torch. Where they leave a thing
open, the docstrings of the implementation decided; the how-to pages of the systems say where. The oracles of
the authors of the implementation are in `ensemble_oracles.py` and `system_oracles.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

Vector = Sequence[float]
Batch = Sequence[Vector]
Pair = tuple[int, int]


def dot(a: Vector, b: Vector) -> float:
    """Return the sum of products."""
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def unit(a: Vector) -> list[float]:
    """Return the vector divided by its length; a vector of zeros stays as it is."""
    length = math.sqrt(dot(a, a)) or 1.0
    return [float(x) / length for x in a]


def squared_distance(a: Vector, b: Vector) -> float:
    """Return ‖a − b‖²."""
    return sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True))


def all_pairs(labels: Sequence[int]) -> dict[Pair, bool]:
    """Return all ordered pairs of two images of a batch, and whether they are of one class."""
    n = len(labels)
    return {(i, j): labels[i] == labels[j] for i in range(n) for j in range(n) if i != j}


def squared_distances(queries: Batch, candidates: Batch, pairs: Iterable[Pair]) -> dict[Pair, float]:
    """Return d² of the unit vectors of each pair."""
    rows, columns = [unit(v) for v in queries], [unit(v) for v in candidates]
    return {(i, j): squared_distance(rows[i], columns[j]) for i, j in pairs}


def mean_of_kinds(losses: dict[Pair, float], same: dict[Pair, bool], active: bool) -> float:
    """Return the mean of the positive pairs plus that of the negative ones, of all or of those above 0."""
    total = 0.0
    for kind in (True, False):
        kept = [loss for pair, loss in losses.items() if same[pair] == kind and (loss > 0 or not active)]
        total += sum(kept) / len(kept) if kept else 0.0
    return total


def gradient(function: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Return the gradient of a function of an array by central differences."""
    slope = np.zeros_like(at)
    for index in np.ndindex(*at.shape):
        up, down = at.copy(), at.copy()
        up[index] += step
        down[index] -= step
        slope[index] = (function(up) - function(down)) / (2 * step)
    return slope


# HDC


def hdc_pair_loss(d2: float, same: bool, margin: float = 1.0) -> float:
    """Return d² of a positive pair, [margin − d²]₊ of a negative one."""
    return d2 if same else max(0.0, margin - d2)


def cascade(
    d2: Sequence[dict[Pair, float]], same: dict[Pair, bool], shares: Sequence[float]
) -> list[set[Pair]]:
    """Return the pairs that each head learns from: all, then the hardest as the head before judges.

    Positives and negatives are ranked apart, by their loss, or where it is 0, by their distance.
    Shares are of all pairs; one as hard as the last of a share belongs to it.

    Args:
        d2: The squared distance of every pair, for each head.
        same: Whether a pair is of one class.
        shares: Of each head.
    """
    sets: list[set[Pair]] = [set() for _ in shares]
    for kind in (True, False):
        total = [pair for pair in same if same[pair] == kind]
        seen = total
        for m, share in enumerate(shares):
            if m > 0:
                hardness = {pair: d2[m - 1][pair] if kind else -d2[m - 1][pair] for pair in seen}
                ranked = sorted(hardness.values(), reverse=True)
                last = ranked[min(len(ranked), math.ceil(share * len(total) - 1e-9)) - 1]
                seen = [pair for pair in seen if hardness[pair] >= last]
            sets[m] |= set(seen)
    return sets


# BIER


def binomial_deviance(
    s: float, same: bool, alpha: float = 2.0, beta: float = 0.5, cost: float = 25.0
) -> float:
    """Return log(1 + e^(−α(s − β))) of a positive pair, log(1 + e^(αC(s − β))) of a negative one."""
    return math.log1p(math.exp(-alpha * (s - beta) if same else alpha * cost * (s - beta)))


def boosting_weights(
    scores: list[dict[Pair, float]], slope: Callable[[float, Pair], float]
) -> list[dict[Pair, float]]:
    """Return the weight of every pair for every learner.

    Algorithm 1 of the paper: from 0, a score becomes (1 − η) score + η s_m with η = 2 / (m + 1). The first
    learner weighs every pair 1, a later one by the size of the loss's gradient at the score so far.

    Args:
        scores: The cosine of every pair, for each learner.
        slope: The size of the gradient of the loss of a pair by its score.
    """
    boosted = dict.fromkeys(scores[0], 0.0)
    weights = [dict.fromkeys(scores[0], 1.0)]
    for m in range(1, len(scores)):
        eta = 2 / (m + 1)
        for pair in boosted:
            boosted[pair] = (1 - eta) * boosted[pair] + eta * scores[m - 1][pair]
        weights.append({pair: slope(score, pair) for pair, score in boosted.items()})
    return weights


def activation(learners: Sequence[Batch]) -> float:
    """Return the mean of (f_i[k] · f_j[l])² over images and dimensions, summed over learners i < j."""
    total = 0.0
    for i in range(len(learners)):
        for j in range(i + 1, len(learners)):
            products = [
                (a * b) ** 2 for f, g in zip(learners[i], learners[j], strict=True) for a in f for b in g
            ]
            total += sum(products) / len(products)
    return total


def regress(layers: Sequence[tuple[Batch, Vector]], x: Vector) -> list[float]:
    """Return the output of linear layers (weights, biases) with ReLU between them."""
    out = [float(v) for v in x]
    for number, (weights, biases) in enumerate(layers):
        out = [dot(w, out) + float(b) for w, b in zip(weights, biases, strict=True)]
        if number < len(layers) - 1:
            out = [max(0.0, v) for v in out]
    return out


def adversarial_similarity(target: Batch, source: Batch, layers: Sequence[tuple[Batch, Vector]]) -> float:
    """Return the mean over images and dimensions of (target · g(source))², g a regressor."""
    terms = [
        (a * b) ** 2
        for f, g in zip(target, source, strict=True)
        for a, b in zip(f, regress(layers, g), strict=True)
    ]
    return sum(terms) / len(terms)


# ABE


def divergence(learners: Sequence[Batch], margin: float = 1.0) -> list[float]:
    """Return, per image, the sum over learners i < j of [margin − d²]₊ of their unit vectors."""
    out = []
    for image in range(len(learners[0])):
        views = [unit(batch[image]) for batch in learners]
        out.append(
            sum(
                max(0.0, margin - squared_distance(views[i], views[j]))
                for i in range(len(views))
                for j in range(i + 1, len(views))
            )
        )
    return out


# HTL


def class_distances(vectors: Batch, labels: Sequence[int], classes: int) -> list[list[float]]:
    """Return the mean squared distance of images of two classes, or of two images of one."""
    units = [unit(v) for v in vectors]
    table = [[0.0] * classes for _ in range(classes)]
    for p in range(classes):
        for q in range(classes):
            d2 = [
                squared_distance(units[i], units[j])
                for i in range(len(units))
                for j in range(len(units))
                if i != j and labels[i] == p and labels[j] == q
            ]
            table[p][q] = sum(d2) / len(d2) if d2 else 0.0
    return table


def tree_thresholds(table: list[list[float]], levels: int = 16) -> list[float]:
    """Return d_l = l (4 − d₀) / L + d₀ for l = 0 … L, d₀ the mean of the distances within classes."""
    within = [table[c][c] for c in range(len(table)) if table[c][c] > 0]  # a class of one image has no spread
    d0 = sum(within) / len(within)
    return [level * (4 - d0) / levels + d0 for level in range(levels + 1)]


def merge_heights(table: list[list[float]], thresholds: list[float]) -> list[list[float]]:
    """Return for two classes the threshold of the level that first puts them into one node.

    At each level, the two nearest nodes are merged as long as they are nearer than its threshold; at the top
    level all are. Two nodes are as far apart as the two nearest classes in them.
    """
    classes = len(table)
    nodes = [[c] for c in range(classes)]
    heights = [[0.0] * classes for _ in range(classes)]

    def distance(a: list[int], b: list[int]) -> float:
        return min(table[p][q] for p in a for q in b)

    for level, threshold in enumerate(thresholds):
        top = level == len(thresholds) - 1
        while len(nodes) > 1:
            nearest, a, b = min(
                (distance(nodes[a], nodes[b]), a, b)
                for a in range(len(nodes))
                for b in range(a + 1, len(nodes))
            )
            if nearest >= threshold and not top:
                break
            for p in nodes[a]:
                for q in nodes[b]:
                    heights[p][q] = heights[q][p] = threshold
            nodes[a] += nodes.pop(b)
    return heights


def violate_margin(height: float, within: float, beta: float = 0.1) -> float:
    """Return α_z = β + d_H(y_a, y_n) − s_(y_a)."""
    return beta + height - within


def hierarchical_triplet(
    vectors: Batch,
    labels: Sequence[int],
    heights: list[list[float]],
    table: list[list[float]],
    beta: float = 0.1,
) -> float:
    """Return 1 / (2 Z) Σ [d²_ap − d²_an + α_z]₊ over all Z triplets of a batch."""
    units = [unit(v) for v in vectors]
    terms = []
    for a in range(len(labels)):
        for p in range(len(labels)):
            for n in range(len(labels)):
                if p != a and labels[p] == labels[a] and labels[n] != labels[a]:
                    margin = violate_margin(heights[labels[a]][labels[n]], table[labels[a]][labels[a]], beta)
                    gap = squared_distance(units[a], units[p]) - squared_distance(units[a], units[n])
                    terms.append(max(0.0, gap + margin))
    return sum(terms) / (2 * len(terms))


def neighbor_classes(table: list[list[float]], anchor: int, count: int) -> list[int]:
    """Return the count classes nearest to an anchor class, nearest first, without itself."""
    others = [c for c in range(len(table)) if c != anchor]
    return sorted(others, key=lambda c: (table[anchor][c], c))[:count]


# PDDM

Layer = tuple[Batch, Vector]


def pair_similarity(
    a: Vector, b: Vector, difference: Layer, mean: Layer, joint: Layer, score: Layer
) -> float:
    """Return S of two vectors: the position-dependent unit of PDDM, equations 1 to 3."""

    def layer(weights: Layer, x: Vector) -> list[float]:
        return [dot(w, x) + float(bias) for w, bias in zip(*weights, strict=True)]

    def relu(x: Vector) -> list[float]:
        return [max(0.0, v) for v in x]

    u = [abs(float(x) - float(y)) for x, y in zip(a, b, strict=True)]
    v = [(float(x) + float(y)) / 2 for x, y in zip(a, b, strict=True)]
    u1 = unit(relu(layer(difference, u)))
    v1 = unit(relu(layer(mean, v)))
    return layer(score, relu(layer(joint, u1 + v1)))[0]


def least_similar_positive(similarity: list[list[float]], labels: Sequence[int], i: int) -> int | None:
    """Return the image of the same class that is least similar to i, or None."""
    positives = [j for j in range(len(labels)) if j != i and labels[j] == labels[i]]
    return min(positives, key=lambda j: similarity[i][j]) if positives else None


def hard_negative(similarity: list[list[float]], labels: Sequence[int], i: int) -> int:
    """Return the image of another class that is most similar to i."""
    return max((j for j in range(len(labels)) if labels[j] != labels[i]), key=lambda j: similarity[i][j])


def quadruplet_loss(
    similarity: list[list[float]],
    distance: list[list[float]],
    quadruplet: tuple[int, int, int, int],
    alpha: float = 0.5,
    beta: float = 1.0,
    balance: float = 0.5,
) -> float:
    """Return the hinges of one quadruplet (i, j, k, l): of S with margin α, and λ times of D with β."""
    i, j, k, m = quadruplet
    learnt = max(0.0, alpha + similarity[i][k] - similarity[i][j]) + max(
        0.0, alpha + similarity[j][m] - similarity[i][j]
    )
    euclidean = max(0.0, beta + distance[i][j] - distance[i][k]) + max(
        0.0, beta + distance[i][j] - distance[j][m]
    )
    return learnt + balance * euclidean


# DREML


def concatenate(members: Sequence[Batch], scales: Sequence[float]) -> list[list[float]]:
    """Return for each image the unit vectors of all members times their scales, joined, as a unit vector.

    The scales are equal in DREML, and the share of the dimensions in BIER.
    """
    return [
        unit([scale * x for scale, batch in zip(scales, members, strict=True) for x in unit(batch[image])])
        for image in range(len(members[0]))
    ]
