"""What the papers prove or work out by hand."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from firstpage import Pairs, losses, mining
from support.batches import batch

GAMMA = 0.25  # exact in binary, so that theorems hold to the last bit or nearly


def list_of(scores, same):
    """One query with the given similarities to its candidates."""
    scores, same = torch.as_tensor(scores, dtype=torch.float64), torch.as_tensor(same, dtype=torch.bool)
    return Pairs(
        queries=torch.ones(1, 2),
        labels=torch.tensor([1]),
        candidates=torch.ones(len(same), 2),
        candidate_labels=same.long(),
        similarity=scores[None],
        positive=same[None],
        negative=~same[None],
    )


def precision_loss(scores, same, k):
    """ℓ_Prec@k: negatives among the first k by s, Sampling Wisely Eq. 3 (no ties in these tests)."""
    return int((~same[scores.argsort(descending=True)[:k]]).sum())


# Scores on a grid: many coincide up to the margin, none with another.
ranked_lists = st.lists(st.booleans(), min_size=2, max_size=14).flatmap(
    lambda same: st.tuples(
        st.lists(st.integers(-1000, 1000), min_size=len(same), max_size=len(same), unique=True),
        st.just(same),
        st.integers(1, 14),
    )
)


@hypothesis.given(ranked_lists)
def test_upper_bounds_theorems_1_and_3(case):
    scores, same, k = torch.tensor(case[0]).double() / 1000, torch.tensor(case[1]), case[2]
    positives = int(same.sum())
    hypothesis.assume(positives >= 1 and k <= len(same))
    loss = losses.topk_precision(list_of(scores, same), k, GAMMA).item()
    wrong = precision_loss(scores, same, k)
    assert loss >= GAMMA * wrong - GAMMA * max(0, k - positives) - 1e-9
    assert loss >= 0


@hypothesis.given(ranked_lists)
def test_consistency_theorems_2_and_4(case):
    """When the ranking is right by the margin, the loss is 0 and precision is the best possible."""
    scores, same, k = torch.tensor(case[0]).double() / 1000, torch.tensor(case[1]), case[2]
    positives = int(same.sum())
    hypothesis.assume(positives >= 1 and k <= len(same))
    best, other = scores[same].sort(descending=True).values, scores[~same].sort(descending=True).values
    kept = min(k, positives)  # positives that belong on the page
    spare = k - kept  # places left for negatives
    if len(other) > spare:  # push the negatives that should be off the page down until the margin holds
        excess = other[spare] - (best[kept - 1] - GAMMA)
        below = (~same) & (scores <= other[spare])
        scores = torch.where(below, scores - excess.clamp_min(0), scores)
    loss = losses.topk_precision(list_of(scores, same), k, GAMMA).item()
    assert loss == pytest.approx(0, abs=1e-9)
    assert precision_loss(scores, same, k) == spare


@hypothesis.given(ranked_lists, st.sampled_from([0.0, GAMMA]))
def test_the_sum_form_of_the_loss(case, margin):
    """ℓ_k = Σ top_k(ŝ) − Σ top_m(ŝ⁺) − Σ top_{k−m}(ŝ⁻), METHODS §1."""
    scores, same, k = torch.tensor(case[0]).double() / 1000, torch.tensor(case[1]), case[2]
    shifted = scores + margin * (~same).double()

    def top(values, count):
        return values.sort(descending=True).values[:count].sum()

    kept = min(k, int(same.sum()))
    expected = top(shifted, k) - top(shifted[same], kept) - top(shifted[~same], k - kept)
    loss = losses.topk_precision(list_of(scores, same), k, margin)[0]
    assert loss.item() == pytest.approx(expected.item(), abs=1e-9)


def test_worked_example_with_too_few_positives():
    """Sampling Wisely, Figure 2: k = 6, four positives of ten."""
    scores = [0.99, 0.9, 0.8, 0.7, 0.65, 0.6, 0.55, 0.53, 0.5, 0.4]
    same = [1, 1, 0, 0, 0, 0, 1, 0, 0, 1]
    pairs = list_of(scores, same)
    assert losses.topk_precision(pairs, 6, 0.0).item() == pytest.approx(0.30)
    (_, misplaced), (_, intruders) = mining.boundary(6, 0.0)(pairs, None).pairs()
    assert {scores[i] for i in misplaced} == {0.55, 0.4}
    assert {scores[i] for i in intruders} == {0.65, 0.6}


def test_worked_example_with_enough_positives():
    """Sampling Wisely, Figure 3: k = 5, six positives of ten."""
    scores = [0.99, 0.9, 0.8, 0.7, 0.65, 0.6, 0.55, 0.53, 0.5, 0.4]
    same = [1, 1, 0, 1, 0, 0, 1, 1, 1, 0]
    pairs = list_of(scores, same)
    assert losses.topk_precision(pairs, 5, 0.0).item() == pytest.approx(0.37)
    (_, misplaced), (_, intruders) = mining.boundary(5, 0.0)(pairs, None).pairs()
    assert {scores[i] for i in misplaced} == {0.55, 0.53}
    assert {scores[i] for i in intruders} == {0.8, 0.65}


@pytest.mark.parametrize("seed", range(4))
def test_margin_loss_at_its_best_boundary_is_isotonic_regression(seed):
    """Sampling Matters, §4: min_β Σ ℓ_margin = min Σ ξ with d⁻ + ξ⁻ − d⁺ + ξ⁺ ≥ 2α for all pairs of pairs."""
    embeddings, labels = batch(seed, count=8, classes=3)
    pairs = Pairs.of(embeddings.detach(), labels)
    mined = mining.mine(pairs)
    alpha = 0.2
    near, far = (pairs.distance[mask].numpy() for mask in (pairs.positive, pairs.negative))
    rows, bounds = [], []
    for i, positive in enumerate(near):
        for j, negative in enumerate(far):
            row = np.zeros(len(near) + len(far))
            row[i] = row[len(near) + j] = -1
            rows.append(row)
            bounds.append(negative - positive - 2 * alpha)
    programme = linprog(np.ones(len(near) + len(far)), A_ub=np.array(rows), b_ub=np.array(bounds))

    def total(beta):
        # the loss is divided by its active pairs: multiply back
        value = losses.margin(pairs, mined, torch.full((8,), beta, dtype=torch.float64), alpha).mean().item()
        active = (near > beta - alpha).sum() + (far < beta + alpha).sum()
        return value * active

    # A piecewise linear function of β is least at one of its corners.
    best = min(total(float(beta)) for beta in np.concatenate([near + alpha, far - alpha]))
    assert best == pytest.approx(programme.fun, abs=1e-6)


def test_margin_gradient_of_beta_counts_the_violations():
    """Sampling Matters, §4: ∂β ℓ = −y 1{violated}; at ν the violations of either side differ by ν pairs."""
    embeddings, labels = batch(5, count=8, classes=3)
    pairs = Pairs.of(embeddings.detach(), labels)
    loss = losses.Margin(negatives="all").double()
    with torch.no_grad():
        loss.beta.fill_(1.0)
    loss.of(pairs).backward()
    too_far = (pairs.distance[pairs.positive] > 1.0 - 0.2).sum()
    too_close = (pairs.distance[pairs.negative] < 1.0 + 0.2).sum()
    expected = (too_close - too_far) / (too_close + too_far)
    assert loss.beta.grad.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("temperature", [0.0, 1000.0])
def test_ranked_list_weights_run_from_equal_to_hardest(temperature):
    """Ranked List, §3.2: T = 0 treats all non-trivial negatives alike, T = ∞ is hard mining."""
    embeddings, labels = batch(6, count=10, classes=5)
    pairs = Pairs.of(embeddings.detach(), labels)
    ours = losses.ranked_list(pairs, 1.2, 0.4, temperature)
    for q in range(10):
        positive = pairs.distance[q][pairs.positive[q]]
        positive = positive[positive > 0.8] - 0.8
        negative = 1.2 - pairs.distance[q][pairs.negative[q]]
        negative = negative[negative > 0]
        expected = positive.mean() if len(positive) else torch.tensor(0.0)
        if len(negative):
            expected = expected + (negative.mean() if temperature == 0 else negative.max())
        assert ours[q].item() == pytest.approx(expected.item(), abs=1e-4)


def test_ranked_list_moves_only_the_query():
    """Ranked List, §3.2: the other examples of a list are constants."""
    embeddings, labels = batch(7)
    terms = losses.RankedList(reduction="none")(embeddings, labels)
    for q in range(len(labels)):
        (gradient,) = torch.autograd.grad(terms[q], embeddings, retain_graph=True)
        assert (gradient[torch.arange(len(labels)) != q] == 0).all()
