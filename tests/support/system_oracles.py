"""Independent oracles of the compared systems (METHODS, §11): HTL's tree and margins, PDDM's quadruplets.

Plain loops in float64 over images, classes and triplets, written from the formulas.
"""

from itertools import combinations, permutations

import torch

from support.oracles import hinge, zero


def _squared(one, other):
    """Squared distance of two vectors scaled to length one."""
    one, other = (row.double() / row.double().norm() for row in (one, other))
    return float(sum((a - b) ** 2 for a, b in zip(one.tolist(), other.tolist(), strict=True)))


def _mean(values):
    return sum(values) / len(values)


class Tree:
    """HTL's class tree: thresholds d_0…d_L, spread of each class, lowest common level of each two classes."""

    def __init__(self, vectors, labels, classes, levels):
        images = {
            c: [row for row, label in zip(vectors, labels.tolist(), strict=True) if label == c]
            for c in classes
        }
        several = [c for c in classes if len(images[c]) > 1]
        self.spread = {
            c: _mean([_squared(*pair) for pair in permutations(images[c], 2)]) if c in several else 0.0
            for c in classes
        }
        lowest = _mean([self.spread[c] for c in several])
        self.thresholds = [level * (4 - lowest) / levels + lowest for level in range(levels + 1)]
        apart = {
            frozenset(pair): _mean([_squared(a, b) for a in images[pair[0]] for b in images[pair[1]]])
            for pair in combinations(classes, 2)
            if images[pair[0]] and images[pair[1]]
        }
        groups = [{c} for c in classes]
        self.levels = {}
        for level, threshold in enumerate(self.thresholds):
            merged = True
            while merged:
                merged = False
                for one, other in combinations(groups, 2):
                    near = any(apart.get(frozenset((p, q)), 5.0) < threshold for p in one for q in other)
                    if near or level == levels:  # the last level is the root
                        groups = [group for group in groups if group not in (one, other)] + [one | other]
                        merged = True
                        break
            for group in groups:
                for pair in combinations(group, 2):
                    self.levels.setdefault(frozenset(pair), level)

    def level(self, one, other):
        return 0 if one == other else self.levels[frozenset((one, other))]

    def margin(self, anchor, negative, beta):
        """α_z = β + d_H(y_a, y_n) − s_{y_a}."""
        return beta + self.thresholds[self.level(anchor, negative)] - self.spread[anchor]


def hierarchical_triplet(batch, tree, beta):
    """[Q]: each anchor's part of 1 / (2Z) Σ [d_ap² − d_an² + α_z]₊ over all Z triplets, times Q."""
    sums, count = [], 0
    for a in range(batch.query_count):
        total = zero()
        for p in batch.positives(a):
            for n in batch.negatives(a):
                margin = tree.margin(batch.labels[a], batch.candidate_labels[n], beta)
                total = total + hinge(batch.d(a, p) ** 2 - batch.d(a, n) ** 2 + margin)
                count += 1
        sums.append(total)
    return torch.stack(sums) * batch.query_count / (2 * max(1, count))


def pair_similarity(one, other, weights):
    """PDDM's S of two unit vectors, by the names of its layers' weights."""

    def layer(name, values):
        return [
            sum(w * value for w, value in zip(row, values, strict=True)) + bias
            for row, bias in zip(
                weights[f"{name}.weight"].double(), weights[f"{name}.bias"].double(), strict=True
            )
        ]

    def scaled(values):
        length = torch.sqrt(sum(value**2 for value in values))
        return [value / length for value in values]

    pairs = list(zip(one, other, strict=True))
    u = scaled([hinge(value) for value in layer("difference", [abs(a - b) for a, b in pairs])])
    v = scaled([hinge(value) for value in layer("mean", [(a + b) / 2 for a, b in pairs])])
    return layer("score", [hinge(value) for value in layer("both", u + v)])[0]


def quadruplet(batch, i, similarity):
    """The hard quadruplet (j, k, l) of query i, or None: worst positive, and worst negative of both."""
    positives, negatives = batch.positives(i), batch.negatives(i)
    if not positives or not negatives:
        return None

    def value(score):
        return score.detach().item()

    j = min(positives, key=lambda c: value(similarity(batch.queries[i], batch.candidates[c])))
    k = max(negatives, key=lambda c: value(similarity(batch.queries[i], batch.candidates[c])))
    others = [c for c in range(batch.candidate_count) if batch.candidate_labels[c] != batch.labels[i]]
    return j, k, max(others, key=lambda c: value(similarity(batch.candidates[j], batch.candidates[c])))


def pddm(batch, weights, alpha, beta, weight):
    """[Q]: the hinges of S and of squared distances over each query's quadruplet."""

    def similarity(one, other):
        return pair_similarity(one, other, weights)

    def squared(one, other):
        return ((one - other) ** 2).sum()

    terms = []
    for i in range(batch.query_count):
        chosen = quadruplet(batch, i, similarity)
        if chosen is None:
            terms.append(zero())
            continue
        x_i, (x_j, x_k, x_l) = batch.queries[i], (batch.candidates[c] for c in chosen)
        s_ij, d_ij = similarity(x_i, x_j), squared(x_i, x_j)
        learned = hinge(alpha + similarity(x_i, x_k) - s_ij) + hinge(alpha + similarity(x_j, x_l) - s_ij)
        apart = hinge(beta + d_ij - squared(x_i, x_k)) + hinge(beta + d_ij - squared(x_j, x_l))
        terms.append(learned + weight * apart)
    return torch.stack(terms)


def is_random_partition(classes, groups, labels, assigned):
    """Whether DREML's meta-classes are what they must be: whole classes, in groups of equal size."""
    group_of = {}
    for label, group in zip(labels, assigned, strict=True):
        if group_of.setdefault(label, group) != group:
            return False
    sizes = [sum(group == one for group in group_of.values()) for one in range(groups)]
    return len(group_of) == classes and sum(sizes) == classes and max(sizes) - min(sizes) <= 1
