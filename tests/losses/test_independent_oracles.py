"""HDC, BIER, ABE, HTL, PDDM and DREML against loops by another hand: values and gradients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from firstpage import losses
from firstpage.data import NeighborSampler
from firstpage.data.meta_classes import group_classes
from firstpage.losses import class_tree, diversity
from firstpage.models import Embedder, combine
from firstpage.models.heads import concatenate_learners
from firstpage.pairs import Pairs
from support import independent_oracles as oracle

SEEDS = range(2)


def draw(seed: int, classes: Sequence[int], *dims: int) -> tuple[Tensor, list[Tensor]]:
    """Return the labels in random order, and random vectors of each size with gradient, in float64."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randperm(len(classes), generator=generator)]
    vectors = [torch.randn(len(classes), dim, generator=generator, dtype=torch.float64) for dim in dims]
    return labels, [part.requires_grad_() for part in vectors]


def arrays(learners: Sequence[Tensor]) -> list[np.ndarray]:
    """Return the values of tensors."""
    return [part.detach().numpy() for part in learners]


def check_gradients(
    learners: Sequence[Tensor], expected: Callable[[list[np.ndarray]], float], sign: float = 1.0
) -> None:
    """Compare the gradient of each tensor with that of a function of all of them."""
    values = arrays(learners)
    assert any(part.grad is not None and part.grad.abs().max() > 1e-3 for part in learners)
    for place, part in enumerate(learners):

        def moved(at: np.ndarray, place: int = place) -> float:
            return expected([*values[:place], at, *values[place + 1 :]])

        assert part.grad is not None
        np.testing.assert_allclose(part.grad.numpy(), sign * oracle.gradient(moved, values[place]), atol=1e-7)


# HDC


@pytest.mark.parametrize("seed", SEEDS)
def test_hdc_each_head_learns_from_its_hard_share(seed: int) -> None:
    labels, learners = draw(seed, [0, 0, 0, 0, 1, 1, 1, 2, 2, 3], 2, 3, 3)
    same, shares = oracle.all_pairs(labels.tolist()), (1.0, 0.5, 0.2)

    def d2(values: Sequence[np.ndarray]) -> list[dict[oracle.Pair, float]]:
        return [oracle.squared_distances(part, part, same) for part in values]

    sets = oracle.cascade(d2(arrays(learners)), same, shares)
    ensemble = losses.Ensemble([losses.Contrastive(form="linear") for _ in shares], "cascade", shares)
    seen = ensemble.cascaded([Pairs.of(part, labels) for part in learners])
    assert [{(i, j) for i, j in (p.positive | p.negative).nonzero().tolist()} for p in seen] == sets

    def expected(values: list[np.ndarray]) -> float:
        heads = zip(d2(values), sets, strict=True)
        terms = ({pair: oracle.hdc_pair_loss(row[pair], same[pair]) for pair in kept} for row, kept in heads)
        return sum(oracle.mean_of_kinds(part, same, active=True) for part in terms)

    loss = ensemble(learners, labels)
    assert loss.item() == pytest.approx(expected(arrays(learners)))
    loss.backward()
    check_gradients(learners, expected)


def test_hdc_shares_of_queries_against_other_candidates() -> None:
    labels, learners = draw(5, [0, 0, 1, 1, 2], 3, 4)
    others, candidates = draw(6, [0, 0, 0, 1, 2, 2, 3], 3, 4)
    same = {(i, j): bool(labels[i] == others[j]) for i in range(5) for j in range(7)}
    d2 = [
        oracle.squared_distances(q, c, same)
        for q, c in zip(arrays(learners), arrays(candidates), strict=True)
    ]
    pairs = [Pairs.of(q, labels, c, others) for q, c in zip(learners, candidates, strict=True)]
    seen = losses.Ensemble([losses.Contrastive()] * 2, "cascade", (1.0, 0.3)).cascaded(pairs)
    kept = {(i, j) for i, j in (seen[1].positive | seen[1].negative).nonzero().tolist()}
    assert kept == oracle.cascade(d2, same, (1.0, 0.3))[1]


# BIER


@pytest.mark.parametrize("seed", SEEDS)
def test_bier_weighs_pairs_by_what_the_learners_before_leave_wrong(seed: int) -> None:
    labels, learners = draw(seed, [0, 0, 0, 1, 1, 2, 3], 2, 3, 4)
    same = oracle.all_pairs(labels.tolist())

    def cosines(values: np.ndarray) -> dict[oracle.Pair, float]:
        return {pair: 1 - d2 / 2 for pair, d2 in oracle.squared_distances(values, values, same).items()}

    def slope(score: float, pair: oracle.Pair) -> float:
        """The size of the gradient of log(1 + e^−x) by x, as in the authors' code: negatives cost C once."""
        x = 2 * (score - 0.5) * (1 if same[pair] else -25)
        return 1 / (1 + math.exp(x))

    weights = oracle.boosting_weights([cosines(part) for part in arrays(learners)], slope)
    ensemble = losses.Ensemble([losses.BinomialDeviance() for _ in learners], "boost")
    for part, expected_weights in zip(
        ensemble.boosted([Pairs.of(part, labels) for part in learners])[1:], weights[1:], strict=True
    ):
        for (i, j), weight in expected_weights.items():
            assert part.weights[i, j].item() == pytest.approx(weight, abs=1e-12)  # type: ignore[attr-defined]

    def weighted(values: list[np.ndarray], all_weights: list[dict[oracle.Pair, float]]) -> float:
        total = 0.0
        for row, weight in zip(map(cosines, values), all_weights, strict=True):
            terms = {pair: weight[pair] * oracle.binomial_deviance(s, same[pair]) for pair, s in row.items()}
            total += oracle.mean_of_kinds(terms, same, active=False)
        return total

    loss = ensemble(learners, labels)
    assert loss.item() == pytest.approx(
        weighted(arrays(learners), [weights[0]] * 3)
    )  # the value is not weighted
    loss.backward()
    check_gradients(learners, lambda values: weighted(values, weights))


def test_bier_activation() -> None:
    _, learners = draw(0, [0] * 5, 2, 3, 4)

    def expected(values: list[np.ndarray]) -> float:
        return oracle.activation([part / np.sqrt(np.mean(part**2)) for part in values])

    loss = losses.ActivationDiversity()(learners)
    assert loss.item() == pytest.approx(expected(arrays(learners)))
    loss.backward()
    check_gradients(learners, expected)


def test_bier_adversarial_learners_lower_what_regressors_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diversity, "HIDDEN", 5)
    torch.manual_seed(0)
    term = losses.AdversarialDiversity([2, 3, 4]).double()
    with torch.no_grad():
        term.regressors[0].hidden.bias.mul_(9)  # one longer than 1, which is cut to that
    parameters = list(term.parameters())
    _, learners = draw(1, [0] * 3, 2, 3, 4)

    def similarity(values: list[np.ndarray]) -> float:
        parts, weights = values[:3], values[3:]
        scaled = [[math.sqrt(part.shape[1]) * np.array(oracle.unit(v)) for v in part] for part in parts]
        total = 0.0
        for number, (target, source) in enumerate(((0, 1), (0, 2), (1, 2))):
            first, first_bias, second, second_bias = weights[4 * number : 4 * number + 4]
            layers = [
                ([oracle.unit(row) for row in rows], bias / max(1.0, math.sqrt(oracle.dot(bias, bias))))
                for rows, bias in ((first, first_bias), (second, second_bias))
            ]
            total += oracle.adversarial_similarity(scaled[target], scaled[source], layers)
        return total

    loss = term(learners)
    assert loss.item() == pytest.approx(-similarity(arrays([*learners, *parameters])))
    loss.backward()
    check_gradients(learners, lambda values: similarity([*values, *arrays(parameters)]))
    check_gradients(parameters, lambda values: -similarity([*arrays(learners), *values]))


def test_bier_learners_count_by_their_share_of_dimensions() -> None:
    _, learners = draw(2, [0] * 4, 2, 3, 5)
    expected = oracle.concatenate(arrays(learners), [0.2, 0.3, 0.5])
    np.testing.assert_allclose(concatenate_learners(learners).detach().numpy(), expected, atol=1e-6)


# ABE


@pytest.mark.parametrize("seed", SEEDS)
def test_abe_divergence(seed: int) -> None:
    _, learners = draw(seed, [0] * 6, 3, 3, 3)

    def expected(values: list[np.ndarray]) -> float:
        return float(np.mean(oracle.divergence(values, margin=1.5)))

    loss = losses.Divergence(margin=1.5)(learners)
    assert loss.item() == pytest.approx(expected(arrays(learners)))
    loss.backward()
    check_gradients(learners, expected)


# HTL

SIZES = [4, 2, 3, 5, 2, 3, 2, 1]


def surveyed(seed: int) -> tuple[Tensor, Tensor]:
    """Return vectors and labels of classes of several sizes and spreads, some of them near each other."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    centers = torch.randn(len(SIZES), 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), 4, generator=generator, dtype=torch.float64)
    vectors = centers[labels] + noise * (0.2 + 0.1 * labels[:, None])
    order = torch.randperm(len(labels), generator=generator)
    return vectors[order], labels[order]


@pytest.mark.parametrize("seed", SEEDS)
def test_htl_tree_margins_and_loss(seed: int) -> None:
    vectors, rows = surveyed(seed)
    table = oracle.class_distances(vectors.tolist(), rows.tolist(), len(SIZES))
    thresholds = oracle.tree_thresholds(table)
    heights = oracle.merge_heights(table, thresholds)
    loss = losses.HierarchicalTriplet(len(SIZES)).double()
    loss.survey(vectors, rows)
    np.testing.assert_allclose(loss.tree.thresholds.numpy(), thresholds)
    np.testing.assert_allclose(loss.tree.spread.numpy(), np.diag(table), atol=1e-12)
    classes = torch.arange(len(SIZES))
    merged = loss.tree.distance(classes, classes).fill_diagonal_(0)
    np.testing.assert_allclose(merged.numpy(), heights)
    assert (
        len({round(height, 6) for row in heights for height in row}) > 4
    )  # several levels, or nothing is shown

    labels, (noise,) = draw(seed, [0, 0, 0, 1, 1, 2, 3, 3, 7], 4)
    batch = (vectors[[int((rows == c).nonzero()[0]) for c in labels]] + 0.3 * noise.detach()).requires_grad_()
    margins = loss.margin(Pairs.of(batch, labels))
    for i, a in enumerate(labels.tolist()):
        for j, n in enumerate(labels.tolist()):
            if a != n:
                assert margins[i, j].item() == pytest.approx(
                    oracle.violate_margin(heights[a][n], table[a][a])
                )

    def expected(values: list[np.ndarray]) -> float:
        return oracle.hierarchical_triplet(values[0], labels.tolist(), heights, table)

    value = loss(batch, labels)
    assert value.item() == pytest.approx(expected([batch.detach().numpy()]))
    value.backward()
    check_gradients([batch], expected)


@pytest.mark.parametrize("neighbors", [1, 3])
def test_htl_batches_are_classes_with_their_nearest(neighbors: int) -> None:
    vectors, rows = surveyed(0)
    table = oracle.class_distances(vectors.tolist(), rows.tolist(), len(SIZES))
    nearest = [oracle.neighbor_classes(table, c, neighbors) for c in range(len(SIZES))]
    assert class_tree.nearest_classes(vectors, rows, len(SIZES), neighbors).tolist() == nearest
    sampler = NeighborSampler(rows, batch_size=8, images_per_class=2, neighbors=neighbors, seed=1)
    sampler.survey(vectors, rows)
    batches = [list(dict.fromkeys(rows[batch].tolist())) for batch in [*sampler, *sampler]]
    assert len(batches) >= 4
    for classes in batches:
        place = 0
        while place < len(
            classes
        ):  # a class, then those of its nearest that are not there yet, cut at the end
            near = [c for c in nearest[classes[place]] if c not in classes[:place]]
            assert classes[place + 1 : place + 1 + len(near)] == near[: len(classes) - place - 1]
            place += 1 + len(near)


# PDDM


@pytest.mark.parametrize("seed", SEEDS)
def test_pddm_similarity_quadruplets_and_loss(seed: int) -> None:
    labels, (batch,) = draw(seed, [0, 0, 0, 1, 1, 2], 3)
    classes = labels.tolist()
    torch.manual_seed(seed)
    loss = losses.PDDM(dim=3, alpha=0.4, beta=0.9, weight=0.6).double()
    unit_ = loss.similarity
    parameters = [
        parameter
        for layer in (unit_.difference, unit_.mean, unit_.both, unit_.score)
        for parameter in (layer.weight, layer.bias)
    ]

    def similarities(values: list[np.ndarray]) -> list[list[float]]:
        units = [oracle.unit(v) for v in values[0]]
        layers = [(values[1 + 2 * k], values[2 + 2 * k]) for k in range(4)]
        table = [[oracle.pair_similarity(a, b, *layers) for b in units[: i + 1]] for i, a in enumerate(units)]
        return [[table[max(i, j)][min(i, j)] for j in range(len(units))] for i in range(len(units))]

    def expected(values: list[np.ndarray]) -> float:
        similarity = similarities(values)
        units = [oracle.unit(v) for v in values[0]]
        distance = [[oracle.squared_distance(a, b) for b in units] for a in units]
        total = 0.0
        for i in range(len(classes)):
            j = oracle.least_similar_positive(similarity, classes, i)
            if j is not None:
                k, m = (oracle.hard_negative(similarity, classes, anchor) for anchor in (i, j))
                total += oracle.quadruplet_loss(similarity, distance, (i, j, k, m), 0.4, 0.9, 0.6)
        return total / len(classes)

    everything = [batch, *parameters]
    units = torch.nn.functional.normalize(batch.detach(), dim=1)
    np.testing.assert_allclose(
        unit_.table(units, units).numpy(), similarities(arrays(everything)), atol=1e-12
    )
    value = loss(batch, labels)
    assert value.item() == pytest.approx(expected(arrays(everything)))
    value.backward()
    check_gradients(everything, expected)


# DREML


@pytest.mark.parametrize(("classes", "groups"), [(10, 4), (100, 12), (7, 7), (5, 2)])
def test_dreml_groups_whole_classes_evenly_and_anew_for_each_network(classes: int, groups: int) -> None:
    labels = np.repeat(np.arange(classes), np.arange(classes) % 3 + 1)
    partitions = set()
    for member in range(4):
        group = group_classes(labels, groups, 0, member)
        of_class = [set(group[labels == c].tolist()) for c in range(classes)]
        assert all(len(found) == 1 for found in of_class)
        sizes = Counter(found.pop() for found in of_class)
        assert set(sizes) == set(range(groups))
        assert max(sizes.values()) - min(sizes.values()) <= 1
        partitions.add(tuple(group.tolist()))
    assert len(partitions) > 1


def test_dreml_classes_meet_at_random() -> None:
    """Of n classes in D groups, two are in one group with probability (n / D − 1) / (n − 1)."""
    labels = np.arange(12)
    together = np.zeros((12, 12))
    for member in range(600):
        group = group_classes(labels, 4, 1, member)
        together += group[:, None] == group[None, :]
    others = together[~np.eye(12, dtype=bool)] / 600
    assert others.mean() == pytest.approx(2 / 11)
    assert abs(others - 2 / 11).max() < 0.075  # 4.7 standard deviations


def test_dreml_concatenates_unit_vectors() -> None:
    torch.manual_seed(0)
    members = [Embedder.create(backbone="small", dim=4, stored=48, crop=48).eval() for _ in range(2)]
    images = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        parts = [member(images) for member in members]
        together = combine(members).eval()(images)
    np.testing.assert_allclose(together.numpy(), oracle.concatenate(arrays(parts), [1, 1]), atol=1e-6)
