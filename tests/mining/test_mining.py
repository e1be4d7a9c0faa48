"""Mining: each strategy against loops, and the draws against their law."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from firstpage import Pairs, losses, mining
from firstpage.errors import UserError
from firstpage.mining.negatives import NEGATIVES
from firstpage.mining.positives import POSITIVES
from support import oracles
from support.batches import batch, pairs_of


def triplets(mined):
    return sorted(tuple(map(int, t)) for t in zip(*mined.triplets(), strict=True))


@pytest.mark.parametrize("positives", ["all", "easy", "hard"])
@pytest.mark.parametrize("negatives", ["all", "hard", "semihard"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_grid_equals_loops(positives, negatives, seed):
    embeddings, labels = batch(seed)
    expected = oracles.mined_triplets(oracles.Batch(embeddings, labels), positives, negatives, copies=None)
    assert triplets(mining.mine(Pairs.of(embeddings, labels), positives, negatives)) == sorted(expected)


@pytest.mark.parametrize("positives", POSITIVES)
@pytest.mark.parametrize("negatives", NEGATIVES)
def test_whatever_is_mined_is_positive_and_negative(positives, negatives):
    pairs = pairs_of(3, count=14, dim=256)
    query, positive, negative = mining.mine(pairs, positives, negatives).triplets()
    assert len(query) > 0
    assert pairs.positive[query, positive].all()
    assert pairs.negative[query, negative].all()


@pytest.mark.parametrize("positives", POSITIVES)
@pytest.mark.parametrize("negatives", NEGATIVES)
def test_nothing_to_mine_is_no_triplet(positives, negatives):
    for labels in (torch.arange(4), torch.zeros(4, dtype=torch.long)):
        mined = mining.mine(Pairs.of(torch.randn(4, 8), labels), positives, negatives)
        assert len(mined.triplets()[0]) == 0


@pytest.mark.parametrize("negatives", ["uniform", "distance_weighted"])
def test_the_same_generator_state_draws_the_same(negatives):
    pairs = pairs_of(4, count=30, dim=16)
    first, again, other = (
        triplets(mining.mine(pairs, "random", negatives, generator=torch.Generator().manual_seed(seed)))
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("beyond", [0.2, 0.5, 1.0])
def test_semihard_beyond_a_distance_is_the_closest_beyond_it(beyond):
    embeddings, labels = batch(5, count=12)
    pairs = Pairs.of(embeddings.detach(), labels)
    mined = mining.mine(pairs, "all", mining.semihard(beyond=beyond))
    found = {(a, p): n for a, p, n in triplets(mined)}
    for a in range(12):
        allowed = [n for n in range(12) if pairs.negative[a, n] and pairs.distance[a, n] > beyond]
        for p in range(12):
            if pairs.positive[a, p]:
                best = min(allowed, key=lambda n: float(pairs.distance[a, n])) if allowed else None
                assert found.get((a, p)) == best


def frequencies(pairs, negatives, draws=20000):
    """How often each negative of query 0 is drawn: one positive, and many draws at once."""
    many = Pairs(
        pairs.queries[:1].expand(draws, -1),
        pairs.labels[:1].expand(draws),
        pairs.candidates,
        pairs.candidate_labels,
        pairs.similarity[:1].expand(draws, -1),
        pairs.positive[:1].expand(draws, -1),
        pairs.negative[:1].expand(draws, -1),
    )
    mined = mining.mine(many, "easy", negatives, generator=torch.Generator().manual_seed(3))
    return torch.bincount(mined.triplets()[2], minlength=len(pairs.candidates)) / draws


@pytest.mark.parametrize("temperature", [1.0, 8.0])
def test_distance_weighted_draws_follow_their_law(temperature):
    pairs = pairs_of(6, count=12, dim=16, spread=0.8)
    expected = oracles.distance_weights(
        pairs.distance[0].tolist(), pairs.negative[0].tolist(), 16, 0.5, 1.4, temperature
    )
    seen = frequencies(pairs, mining.distance_weighted(temperature=temperature))
    torch.testing.assert_close(seen, torch.tensor([float(p) for p in expected]), rtol=0, atol=0.015)


def test_uniform_draws_are_uniform():
    pairs = pairs_of(7, count=12)
    seen = frequencies(pairs, "uniform")
    assert (seen[~pairs.negative[0]] == 0).all()
    share = 1 / pairs.negative[0].sum().item()
    torch.testing.assert_close(
        seen[pairs.negative[0]], torch.full((int(1 / share + 0.5),), share), rtol=0, atol=0.015
    )


@pytest.mark.parametrize("dim", [64, 256, 512, 1024])
@pytest.mark.parametrize("spread", [1e-4, 1e-2, 1.0])
def test_every_anchor_draws_in_high_dimension(dim, spread):
    """Tight classes in 512 dimensions: weights normalized over the batch are 0 for whole rows there."""
    embeddings, labels = batch(8, count=64, dim=dim, classes=16, dtype=torch.float32, spread=spread)
    pairs = Pairs.of(embeddings, labels)
    query, _, negative = mining.mine(pairs, "all", "distance_weighted").triplets()
    assert len(query) == int(pairs.positive.sum())
    assert pairs.negative[query, negative].all()
    # and it is not uniform sampling in disguise: closer negatives are drawn
    near = pairs.distance.masked_fill(~pairs.negative, 2).min(dim=1).values
    drawn = pairs.distance[query, negative]
    assert (drawn - near[query]).mean() < 0.5 * (pairs.distance[pairs.negative].mean() - near.mean())


def test_beyond_the_cutoff_only_when_nothing_is_closer():
    labels = torch.tensor([0, 0, 1, 2])
    far = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.1], [0.0, -1.0]])  # distances 2 and 1.41
    _, _, negative = mining.mine(Pairs.of(far, labels), "all", "distance_weighted").triplets()
    assert len(negative) == 2
    one_near = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.1], [0.0, -0.8]]) + torch.tensor([0.3, 0.0])
    query, _, negative = mining.mine(Pairs.of(one_near, labels), "all", "distance_weighted").triplets()
    assert (negative[query == 0] == 3).all()


@hypothesis.given(
    st.lists(st.tuples(st.floats(-1, 1), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 14),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_boundary_is_the_misplaced_sets(candidates, k, margin):
    scores = torch.tensor([s for s, _ in candidates], dtype=torch.float64)
    same = torch.tensor([y for _, y in candidates])
    hypothesis.assume(len(set(scores.tolist())) == len(scores))
    shifted = scores + margin * (~same).double()  # without ties, which have two answers
    hypothesis.assume(len(set(shifted.tolist())) == len(shifted))
    pairs = Pairs(
        torch.ones(1, 2),
        torch.tensor([1]),
        torch.ones(len(same), 2),
        same.long(),
        scores[None],
        same[None],
        ~same[None],
    )
    (_, positives), (_, negatives) = mining.boundary(k, margin)(pairs, None).pairs()
    expected = oracles.topk_sets(scores.tolist(), [int(y) for y in same], k, margin)
    assert (set(positives.tolist()), set(negatives.tolist())) == expected


def test_nontrivial_sets_are_those_with_a_loss():
    pairs = pairs_of(9, count=12)
    (a, p), (b, n) = mining.nontrivial(1.0, 0.5)(pairs, None).pairs()
    assert set(zip(a.tolist(), p.tolist(), strict=True)) == {
        (i, j) for i in range(12) for j in range(12) if pairs.positive[i, j] and pairs.distance[i, j] > 0.5
    }
    assert set(zip(b.tolist(), n.tolist(), strict=True)) == {
        (i, j) for i in range(12) for j in range(12) if pairs.negative[i, j] and pairs.distance[i, j] < 1.0
    }


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_multi_similarity_keeps_what_overlaps(epsilon):
    pairs = pairs_of(10, count=12)
    s = pairs.similarity.tolist()
    expected = [set(), set()]
    for i in range(12):
        positives = [j for j in range(12) if pairs.positive[i, j]]
        negatives = [j for j in range(12) if pairs.negative[i, j]]
        for j in positives:
            if s[i][j] - epsilon < max((s[i][n] for n in negatives), default=-9):
                expected[0].add((i, j))
        for j in negatives:
            if s[i][j] + epsilon > min((s[i][p] for p in positives), default=9):
                expected[1].add((i, j))
    found = mining.multi_similarity(epsilon)(pairs, None).pairs()
    assert [set(zip(a.tolist(), b.tolist(), strict=True)) for a, b in found] == expected
    assert all(expected)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: mining.multi_similarity(-0.1), "epsilon=-0.1"),
        (lambda: mining.boundary(0, 0.1), r"boundary\(k=0\)"),
        (lambda: mining.boundary(1, -0.1), "margin=-0.1"),
        (lambda: mining.nontrivial(0.0), "alpha=0.0"),
        (lambda: mining.nontrivial(1.0, 2.0), "margin=2.0"),
        (lambda: mining.semihard(beyond=2.5), "beyond=2.5"),
        (lambda: mining.distance_weighted(floor=0), "floor=0"),
        (lambda: mining.distance_weighted(cutoff=0.1), "cutoff=0.1"),
        (lambda: mining.distance_weighted(temperature=0), "temperature=0"),
        (lambda: mining.mine(pairs_of(0), "hardest"), "positives='hardest': choose one of all, easy"),
        (lambda: mining.mine(pairs_of(0), "all", "easy"), "negatives='easy': choose one of all, hard"),
    ],
)
def test_wrong_settings_are_named(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()


def test_density_of_distances_on_the_sphere():
    """q(d) against the distances of random points (Sampling Matters, Figure 2)."""
    generator = torch.Generator().manual_seed(4)
    for dim in (4, 16, 64):
        points = torch.nn.functional.normalize(torch.randn(1500, dim, generator=generator), dim=1)
        distances = torch.pdist(points)
        grid = torch.linspace(0.005, 1.995, 200, dtype=torch.float64)
        density = mining.log_density(grid, dim).exp()
        mean = (grid * density).sum() / density.sum()
        deviation = ((grid - mean).square() * density).sum().div(density.sum()).sqrt()
        assert distances.mean().item() == pytest.approx(mean.item(), abs=0.01)
        assert distances.std().item() == pytest.approx(deviation.item(), rel=0.05)


def test_a_strategy_with_settings_is_a_table_in_a_recipe():
    points = torch.nn.functional.normalize(torch.randn(24, 64, generator=torch.Generator().manual_seed(1)))
    labels = torch.arange(24) // 4
    values = [
        losses.create("margin", negatives=negatives, generator=torch.Generator().manual_seed(0))(
            points, labels
        )
        for negatives in (
            {"name": "distance_weighted", "temperature": 50.0},
            mining.distance_weighted(temperature=50.0),
            "distance_weighted",
        )
    ]
    assert values[0] == values[1]
    assert values[0] != values[2]
    with pytest.raises(UserError, match=r"negatives=.*unexpected keyword argument 'temprature'"):
        losses.create("margin", negatives={"name": "distance_weighted", "temprature": 4.0})
    with pytest.raises(UserError, match="choose one of all, hard"):
        losses.create("margin", negatives={"name": "hardest"})
