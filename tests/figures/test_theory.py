"""The numbers behind the figures of theory, against simulations and the papers' equations."""

import math

import numpy as np
import pytest
import torch

from firstpage import figures, losses
from firstpage.pairs import unit


def random_pairs(count, dimensions, seed=1):
    generator = torch.Generator().manual_seed(seed)
    first, second = (
        unit(torch.randn(count, dimensions, generator=generator, dtype=torch.float64)) for _ in "ab"
    )
    return (first - second).norm(dim=1)


@pytest.mark.parametrize("dimensions", [3, 4, 8, 32, 128, 512, 2048])
def test_density_integrates_to_one(dimensions):
    # Midpoints, because the density of 3 dimensions jumps to 0 beyond its greatest value at 2.
    distance = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 10_000
    assert figures.distance_density(distance, dimensions).mean().item() * 2 == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("dimensions", [3, 8, 128])
def test_density_is_that_of_random_points(dimensions):
    drawn = random_pairs(40_000, dimensions)
    edges = torch.linspace(0, 2, 21, dtype=torch.float64)
    share = torch.histogram(drawn, edges).hist / len(drawn)
    fine = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 10_000
    expected = figures.distance_density(fine, dimensions).reshape(20, -1).mean(dim=1) / 10
    # Four standard deviations of a binomial share.
    assert ((share - expected).abs() < 4 * (expected / len(drawn)).sqrt() + 1e-4).all()


@pytest.mark.parametrize("dimensions", [128, 512])
def test_density_approaches_a_normal_around_root_two(dimensions):
    """Sampling Matters, §4: q approaches N(√2, 1/2n)."""
    distance = torch.linspace(0.5, 2, 30_001, dtype=torch.float64)[:-1]
    density = figures.distance_density(distance, dimensions)
    mean = (density * distance).sum() / density.sum()
    deviation = ((density * (distance - mean).square()).sum() / density.sum()).sqrt().item()
    assert distance[density.argmax()].item() == pytest.approx(math.sqrt(2), abs=0.01)
    assert mean.item() == pytest.approx(math.sqrt(2), abs=0.01)
    assert deviation == pytest.approx(math.sqrt(1 / (2 * dimensions)), rel=0.03)


def test_density_says_what_it_cannot_do():
    with pytest.raises(ValueError, match="dimensions=2"):
        figures.distance_density(torch.tensor([1.0]), 2)


@pytest.mark.parametrize("noise", [0.02, 0.1])
@pytest.mark.parametrize("distance", [0.05, 0.5, 1.4])
def test_variance_is_the_nuclear_norm_of_simulated_directions(distance, noise):
    """In all 32 dimensions, with the covariance as a matrix: what the fast form never builds."""
    dimensions, draws = 32, 20_000
    generator = torch.Generator().manual_seed(3)
    anchor, negative = torch.zeros(2, dimensions, dtype=torch.float64)
    anchor[5] = 1
    negative[5] = 1 - distance**2 / 2
    negative[9] = -math.sqrt(1 - float(negative[5]) ** 2)
    noisy = unit(negative + noise * torch.randn(draws, dimensions, generator=generator, dtype=torch.float64))
    nuclear = torch.linalg.svdvals(torch.cov(unit(anchor - noisy).T)).sum().item()
    found = figures.direction_variance(np.array([distance]), noise, dimensions)[0]
    assert found == pytest.approx(nuclear, abs=0.01)


def test_variance_explodes_for_hard_negatives_and_drops_with_noise_at_zero():
    distance = np.array([0.0, 0.05, 0.2, 0.5, 1.0, 1.4])
    calm, loud = (figures.direction_variance(distance, noise) for noise in (0.01, 0.1))
    assert (np.diff(calm) < 0).all()
    assert (np.diff(loud) < 0).all()
    assert calm[0] > 0.98
    assert calm[-1] < 0.02
    assert (calm[2:] < loud[2:]).all()
    # The spherical projection: "higher noise levels have a lower variance at distance 0" (Fig. 3a).
    assert loud[0] < calm[0] - 0.1


def test_variance_names_what_is_wrong():
    with pytest.raises(ValueError, match="noise=0"):
        figures.direction_variance(np.array([1.0]), 0)
    with pytest.raises(ValueError, match="dimensions=2"):
        figures.direction_variance(np.array([1.0]), 0.1, 2)


@pytest.fixture(scope="module")
def sampled():
    embeddings, labels = figures.simulate_classes(classes=1024)
    return embeddings, labels, figures.sampled_distances(embeddings, labels, samples=2)


def test_simulated_classes_lie_as_far_apart_as_asked():
    embeddings, labels = figures.simulate_classes(classes=500, spread=0.8)
    first, second = embeddings[:500], embeddings[500:]
    assert labels[:500].equal(labels[500:])
    assert torch.allclose(embeddings.norm(dim=1), torch.ones(1000))
    apart = (first - second).norm(dim=1)
    assert apart.mean().item() == pytest.approx(0.8, abs=0.01)
    assert apart.min() > 0.63
    assert apart.max() < 0.97


def test_uniform_negatives_lie_as_the_density_says(sampled):
    drawn = sampled[2]["uniform"]
    assert drawn.median().item() == pytest.approx(math.sqrt(2), abs=0.02)
    assert drawn.std().item() == pytest.approx(math.sqrt(1 / 32), rel=0.08)


def test_hard_negatives_are_the_nearest(sampled):
    embeddings, labels, found = sampled
    distance = torch.cdist(embeddings, embeddings)
    distance[labels[:, None] == labels] = torch.inf
    nearest = distance.amin(dim=1).repeat_interleave(2)
    # Blocks of queries, each drawing twice: the order differs, the distances do not.
    assert torch.allclose(found["hard"].sort().values, nearest.sort().values, atol=1e-4)


def test_semihard_negatives_lie_in_a_narrow_band_beyond_the_positive(sampled):
    found = sampled[2]
    assert found["semihard"].min() > 0.63  # the nearest positive
    assert found["semihard"].quantile(0.99) < 1.05
    assert found["semihard"].std() < found["distance_weighted"].std() / 2
    assert found["hard"].std() < found["distance_weighted"].std() / 2
    assert found["hard"].mean() < found["semihard"].mean() < found["uniform"].mean()


def test_distance_weighted_negatives_spread_evenly_up_to_the_cutoff(sampled):
    drawn = sampled[2]["distance_weighted"]
    assert drawn.max() < 1.4
    share = torch.histogram(drawn, 4, range=(0.8, 1.4)).hist / len(drawn)
    assert share.sum() > 0.6
    assert (share / share.mean()).sub(1).abs().max() < 0.15
    uniform = torch.histogram(sampled[2]["uniform"], 4, range=(0.8, 1.4)).hist
    assert uniform[3] > 20 * uniform[0]  # while uniform draws hardly ever come close


def test_sampling_is_blocked_and_reproducible(sampled):
    embeddings, labels, _ = sampled
    one, two, small = (
        figures.sampled_distances(embeddings[:300], labels[:300] % 100, ["uniform", "hard"], block=block)
        for block in (300, 300, 64)
    )
    assert one["uniform"].equal(two["uniform"])
    assert torch.allclose(one["hard"].sort().values, small["hard"].sort().values, atol=1e-6)


def hinge(value):
    return np.maximum(value, 0)


DISTANCE = np.linspace(0, 2, 41)
OTHER = 1.0
# Loss → (positive, negative) at distance d, as the papers write them.
EQUATIONS = {
    "contrastive": (lambda d: d**2, lambda d: hinge(1 - d) ** 2),
    "triplet ℓ₂²": (lambda d: hinge(d**2 - OTHER**2 + 0.2), lambda d: hinge(OTHER**2 - d**2 + 0.2)),
    "triplet ℓ₂": (lambda d: hinge(d - OTHER + 0.2), lambda d: hinge(OTHER - d + 0.2)),
    "margin": (lambda d: hinge(0.2 + d - 1.2), lambda d: hinge(0.2 - d + 1.2)),
    "ranked list": (lambda d: hinge(d - 0.8), lambda d: hinge(1.2 - d)),
    "NCA": (
        lambda d: np.log1p(np.exp((0.5 - (1 - d**2 / 2)) / 0.1)),
        lambda d: np.log1p(np.exp(((1 - d**2 / 2) - 0.5) / 0.1)),
    ),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_loss_shapes_are_the_equations(name):
    loss = figures.paper_losses()[name]
    other = OTHER if isinstance(loss, losses.Triplet | losses.NCA) else None
    distance = DISTANCE[1:] if name == "NCA" else DISTANCE  # a positive at 0 is a copy, which it leaves out
    found = figures.loss_shape(loss, torch.from_numpy(distance), other)
    for curve, equation in zip(found, EQUATIONS[name], strict=True):
        assert np.allclose(curve.numpy(), equation(distance), atol=1e-6)


def test_every_paper_loss_has_an_equation_here():
    assert set(figures.paper_losses()) == set(EQUATIONS)
