"""Independent oracles for ensembles of learners (METHODS, §11), as plain loops over pairs in float64.

A learner is an `oracles.Batch`: the same images, embedded by one head. Pairs are tuples (query, candidate).
"""

import math

import torch

from support import oracles


class Restricted(oracles.Batch):
    """A batch of which only some pairs are looked at."""

    def __init__(self, batch, positives, negatives):
        self.__dict__.update(batch.__dict__)
        self.kept = set(positives) | set(negatives)

    def positives(self, q):
        return [c for c in super().positives(q) if (q, c) in self.kept]

    def negatives(self, q):
        return [c for c in super().negatives(q) if (q, c) in self.kept]


def all_pairs(batch):
    """The positive and the negative pairs of a batch."""
    queries = range(batch.query_count)
    positives = [(q, c) for q in queries for c in batch.positives(q)]
    return positives, [(q, c) for q in queries for c in batch.negatives(q)]


def hard_shares(learners, percents):
    """HDC: the pairs that each learner sees: head 1 all, head 2 the hardest 50 %, head 3 the hardest 20 %.

    How hard a pair is, the head before says: by d² of a positive and [1 − d²]+ of a negative, whose order is
    that of the distance. It passes on pairs that it was given itself.
    """
    positives, negatives = all_pairs(learners[0])
    every = len(positives), len(negatives)
    seen = [(positives, negatives)]
    for before, percent in zip(learners[:-1], percents[1:], strict=True):
        chosen = []
        for pairs, total, sign in zip(seen[-1], every, (1, -1), strict=True):
            wanted = (total * percent + 99) // 100  # rounded up
            order = sorted(pairs, key=lambda pair, b=before, s=sign: s * b.s(*pair).item())  # hardest first
            if wanted < len(order):  # ties with the last one are as hard
                edge = sign * before.s(*order[wanted - 1]).item()
                order = [pair for pair in order if sign * before.s(*pair).item() <= edge + 1e-12]
            chosen.append(order)
        seen.append(tuple(chosen))
    return seen


def hdc_contrastive(batch, positives, negatives):
    """Positives d², negatives [1 − d²]+, each averaged over the pairs that cost something."""
    value = oracles.zero()
    for pairs, cost in ((positives, lambda d: d * d), (negatives, lambda d: oracles.hinge(1 - d * d))):
        costs = [cost(batch.d(*pair)) for pair in pairs]
        active = [part for part in costs if part.item() > 0]
        if active:
            value = value + sum(active) / len(active)
    return value


def binomial_weights(learners, alpha=2.0, beta=0.5, cost=25.0):
    """BIER: the weight of each pair at each learner, as dicts; the first learner weighs all alike.

    score <- (1 − v) score + v s_m, v = 2 / (m + 1); the next weight is minus the slope of log(1 + e^−x) at
    the score so far, x = alpha (score − beta) of a positive and −alpha cost (score − beta) of a negative.
    """
    positives, negatives = all_pairs(learners[0])
    score = dict.fromkeys([*positives, *negatives], 0.0)
    weights = [dict.fromkeys(score, 1.0)]
    for m, learner in enumerate(learners[:-1], start=1):
        v = 2 / (m + 1)
        for pair in score:
            score[pair] = (1 - v) * score[pair] + v * learner.s(*pair).item()
        weights.append({})
        for pair in score:
            x = alpha * (score[pair] - beta)
            if pair in negatives:
                x = -x * cost
            weights[-1][pair] = 1 / (1 + math.exp(x))
    return weights


def boosted_binomial(learners, alpha=2.0, beta=0.5, cost=25.0):
    """BIER's loss: the weighted deviances of all learners, positives and negatives averaged apart."""
    positives, negatives = all_pairs(learners[0])
    value = oracles.zero()
    for learner, weights in zip(learners, binomial_weights(learners, alpha, beta, cost), strict=True):
        for pair in positives:
            deviance = torch.log1p(torch.exp(-alpha * (learner.s(*pair) - beta)))
            value = value + weights[pair] * deviance / len(positives)
        for pair in negatives:
            deviance = torch.log1p(torch.exp(alpha * cost * (learner.s(*pair) - beta)))
            value = value + weights[pair] * deviance / len(negatives)
    return value


def boosted_pages(learners, k, margin):
    """The top-k precision loss boosted by pages: learner m sees the queries whose page is still wrong.

    Of a query whose page by the score so far lacks w images the slope is w of 1; the weights are these over
    their mean where there is one.
    """
    value = oracles.zero()
    score, count = None, learners[0].query_count
    for m, learner in enumerate(learners, start=1):
        terms = oracles.topk(learner, k, margin)
        if score is None:
            weights = [1.0] * count
        else:
            slopes = [_misplaced(learner, score, q, k, margin) for q in range(count)]
            wrong = [slope for slope in slopes if slope]
            weights = [slope / (sum(wrong) / len(wrong)) if slope else 0.0 for slope in slopes]
        value = value + sum(weight * term for weight, term in zip(weights, terms, strict=True)) / count
        v = 2 / (m + 1)
        old = score or {}
        score = {
            (q, c): (1 - v) * old.get((q, c), 0.0) + v * learner.s(q, c).item()
            for q in range(count)
            for c in range(learner.candidate_count)
        }
    return value


def _misplaced(batch, score, q, k, margin):
    """How many positives should be on the page of k and are not (METHODS, §1)."""
    positives = sorted((score[q, c] for c in batch.positives(q)), reverse=True)
    negatives = [score[q, c] + margin for c in batch.negatives(q)]
    page = sorted([*positives, *negatives], reverse=True)[:k]
    wanted = positives[: min(k, len(positives))]
    return sum(value < page[-1] for value in wanted) if len(page) == k else 0


def divergence(learners, margin):
    """ABE: sum over pairs of learners, mean over images, of [margin − d²]+ on the same image."""
    value = oracles.zero()
    images = len(learners[0])
    for i in range(len(learners)):
        for j in range(i + 1, len(learners)):
            for x in range(images):
                a, b = learners[i][x].double(), learners[j][x].double()
                a, b = a / a.norm(), b / b.norm()
                value = (
                    value
                    + oracles.hinge(margin - sum((p - q) ** 2 for p, q in zip(a, b, strict=True))) / images
                )
    return value


def activation(learners):
    """BIER: mean of (f_i[k] f_j[l])² over images and dimensions, of learners whose mean square entry is 1."""
    scaled = []
    for vectors in learners:
        vectors = vectors.double()
        scaled.append(vectors / torch.sqrt((vectors**2).mean()))
    value = oracles.zero()
    for i in range(len(scaled)):
        for j in range(i + 1, len(scaled)):
            products = [
                (scaled[i][x, k] * scaled[j][x, n]) ** 2
                for x in range(len(scaled[i]))
                for k in range(scaled[i].shape[1])
                for n in range(scaled[j].shape[1])
            ]
            value = value + sum(products) / len(products)
    return value


def adversarial(learners, weights):
    """A-BIER without the reversal: −mean of (f_i ∘ h(f_j))² over pairs i < j.

    weights[i, j] are W1, b1, W2, b2 of the regressor h from j to i; learners have mean square entry 1 on
    each image, rows of W have length 1, and b at most that.
    """
    value = oracles.zero()
    for (i, j), (w1, b1, w2, b2) in weights.items():
        total, entries = oracles.zero(), 0
        for x in range(len(learners[i])):
            a, b = learners[i][x].double(), learners[j][x].double()
            a, b = (v / v.norm() * math.sqrt(len(v)) for v in (a, b))
            hidden = [torch.dot(row / row.norm(), b) + bias for row, bias in zip(w1, _short(b1), strict=True)]
            hidden = torch.stack([oracles.hinge(value) for value in hidden])
            for entry, row, bias in zip(a, w2, _short(b2), strict=True):
                total = total + (entry * (torch.dot(row / row.norm(), hidden) + bias)) ** 2
                entries += 1
        value = value - total / entries
    return value


def _short(bias):
    return bias / max(1.0, bias.norm().item()) if bias.norm().item() <= 1 else bias / bias.norm()
