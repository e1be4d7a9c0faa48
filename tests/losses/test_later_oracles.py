"""The oracles of the later losses against examples worked out by hand, to 16 digits (Python's decimal)."""

import math

import pytest
import torch

from support import later_oracles
from support.oracles import Batch

LN2, LN3 = math.log(2), math.log(3)


def page(positives, negatives):
    """One query (1, 0), and candidates in the plane with the given similarities to it."""
    rows = [[s, math.sqrt(1 - s * s)] for s in [*positives, *negatives]]
    candidates = torch.tensor(rows, dtype=torch.float64).reshape(-1, 2).requires_grad_()
    labels = [0] * len(positives) + [1] * len(negatives)
    return Batch(torch.tensor([[1.0, 0.0]]), [0], candidates, labels)


def value(terms):
    assert terms.shape == (1,)
    return terms.item()


def slopes(loss, s_p, s_n):
    """Derivatives of the loss of one positive and one negative with respect to their similarities."""
    batch = page([s_p], [s_n])
    gradients = torch.autograd.grad(loss(batch).sum(), batch.raw_candidates)
    # At a unit candidate c the gradient of its similarity s to a unit query q is q - s c, of length² 1 - s².
    across = [
        torch.tensor([1.0, 0.0]).double() - s * c for s, c in zip((s_p, s_n), batch.candidates, strict=True)
    ]
    return [(g @ a / (a @ a)).item() for g, a in zip(gradients, across, strict=True)]


def exactly(expected):
    return pytest.approx(expected, rel=1e-12, abs=1e-15)


# ---------------------------------------------------------------- with proxies and centers


def test_proxy_anchor_by_hand():
    # α = ln 2 and δ = 1: a positive weighs 2^(1 - s), a negative 2^(1 + s). Lengths of proxies do not matter.
    images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    proxies = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])
    terms = later_oracles.proxy_anchor(Batch(images, [0, 0, 1]), proxies, alpha=LN2, delta=1.0)
    # s of images 0, 1, 2: with proxy 0: 1, 0, -1; with proxy 1: 0, 1, 0; with proxy 2: -1, 0, 1.
    # Positives: proxy 0: log(1 + 1 + 2) = log 4; proxy 1: log(1 + 2) = log 3; proxy 2 has none: / 2.
    # Negatives: proxy 0: log(1 + 1) = log 2; 1: log(1 + 2 + 4) = log 7; 2: log(1 + 1 + 2 + 4) = log 8: / 3.
    # log(12) / 2 + log(112) / 3
    assert terms.tolist() == [exactly(2.815286281992365)] * 3


def test_proxy_anchor_defaults():
    # One image on its proxy, the other proxy at a right angle: log(1 + e^-28.8) + (0 + log(1 + e^3.2)) / 2
    terms = later_oracles.proxy_anchor(Batch(torch.eye(2)[:1], [0]), torch.eye(2))
    assert value(terms) == exactly(3.106840237542965e-13 + 3.2399533331624304 / 2)


def test_soft_triple_by_hand():
    # γ = 1/ln 3: the weight of a center is 3^s. Query (1, 0), label 0.
    # Class 0: s = 1, 0, weights 3/4, 1/4, S = 3/4. Class 1: s = 0, -1, weights 3/4, 1/4, S = -1/4.
    # λ = ln 2, δ = 1: both logits are -ln 2 / 4, the cross-entropy is log 2.
    # Regularizer: both classes have one pair, at a right angle: 2 √2.00001 / (2 · 2 · 1), times τ = .2.
    centers = torch.tensor([[[1.0, 0.0], [0.0, 5.0]], [[0.0, 1.0], [-2.0, 0.0]]])
    terms = later_oracles.soft_triple(
        Batch(torch.tensor([[7.0, 0.0]]), [0]), centers, gamma=1 / LN3, scale=LN2, margin=1.0
    )
    assert value(terms) == exactly(0.8345688903502035)  # log 2 + √2.00001 / 10


def test_soft_triple_defaults():
    # Class 0: s = .6, .8, γ = .1: weights σ(-2), σ(2) = .1192029…, .8807970…; S = .7761594155955765.
    # Class 1: s = .8, .8: S = .8. Cross-entropy: log(1 + e^(20 (.8 - S_0 + .01))) = 1.0877516637615508.
    # Regularizer: w·w = .96 and 1: .2 (√.08001 + √.00001) / 4 = .01430113336259622.
    centers = torch.tensor([[[3, 4], [4, 3]], [[4, 3], [4, 3]]])
    terms = later_oracles.soft_triple(Batch(torch.tensor([[1.0, 0.0]]), [0]), centers)
    assert value(terms) == exactly(1.102052797124147)


def test_soft_triple_of_one_center_is_the_normalized_softmax():
    # s = 1 and 0: log(1 + e^-19.8); with K = 1 there is no regularizer.
    terms = later_oracles.soft_triple(Batch(torch.eye(2)[:1], [0]), torch.eye(2)[:, None])
    assert value(terms) == exactly(2.51749871626938e-9)


def test_soft_triple_regularizer_of_three_centers():
    # One class: no cross-entropy. Pairs at 90°, 180° and 90°, K (K - 1) = 6, τ = 6: 2 √2.00001 + √4.00001
    centers = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]])
    terms = later_oracles.soft_triple(Batch(torch.eye(2), [0, 0]), centers, tau=6.0)
    assert terms.tolist() == [exactly(4.828436695803601)] * 2


# ---------------------------------------------------------------- pairs


def test_multi_similarity_by_hand():
    # ε = .1: the farthest positive is at -.5, so -1 + .1 is no negative to keep, .5 and 0 are;
    # the nearest negative is at .5, so .9 - .1 is no positive to keep, .5 and -.5 are.
    # α = ln 2: log2(1 + 2^0 + 2^1) = 2. β = 2 ln 2: log2(1 + 2^0 + 2^-1) / 2 = log2(2.5) / 2.
    batch = page([0.5, -0.5, 0.9], [0.5, -1.0, 0.0])
    assert value(later_oracles.multi_similarity(batch, alpha=LN2, beta=2 * LN2)) == exactly(2.660964047443681)


@pytest.mark.parametrize(
    ("s_p", "s_n", "expected"),
    [
        (0.5, 0.5, 0.36043653389117156),  # log(2) / 2 + log(2) / 50
        (0.55, 0.5, 0.33606127364798435),  # .5 + .1 > .55: log(1 + e^-.1) / 2 + log(2) / 50
        (0.61, 0.5, 0.0),  # .5 + .1 is not above .61: nothing kept
    ],
)
def test_multi_similarity_defaults(s_p, s_n, expected):
    assert value(later_oracles.multi_similarity(page([s_p], [s_n]))) == exactly(expected)


def test_circle_by_hand():
    # γ = 5 ln 2, m = .4. Negatives: .6: e^(γ · 1 · .2) = 2; -.5: weight [-.1]+ = 0, e^0 = 1. Sum 3.
    # Positives: .6: e^(-γ · .8 · 0) = 1; .4: e^(-γ · 1 · -.2) = 2. Sum 3. log(1 + 3 · 3)
    terms = later_oracles.circle(page([0.6, 0.4], [0.6, -0.5]), gamma=5 * LN2)
    assert value(terms) == exactly(2.302585092994046)


def test_circle_defaults():
    # γ [.6 + .4] (.6 - .4) = 16 and 80 · .8 · 0 = 0: log(1 + e^16)
    assert value(later_oracles.circle(page([0.6], [0.6]))) == exactly(16.000000112535168)


def test_circle_weights_are_constants():
    # γ = 1: exponents 1 · .2 and -.6 · .2: log(1 + e^.08), with slopes σ(.08) = .5199893… times 1 and -.6.
    found = slopes(lambda b: later_oracles.circle(b, gamma=1.0), 0.8, 0.6)
    assert found == [exactly(-0.6 * 0.5199893401555818), exactly(0.5199893401555818)]


def test_supervised_contrastive_by_hand():
    # τ = 1/ln 2: a candidate weighs 2^s. Sum 2 + 1 + 1/2 = 7/2. (log(7/4) + log(7/2)) / 2 = log(6.125) / 2
    terms = later_oracles.supervised_contrastive(page([1.0, 0.0], [-1.0]), temperature=1 / LN2)
    assert value(terms) == exactly(0.9061893782153953)


def test_supervised_contrastive_defaults():
    # -log(e^6 / (e^6 + e^8)) = log(1 + e^2)
    assert value(later_oracles.supervised_contrastive(page([0.6], [0.8]))) == exactly(2.1269280110429725)


# ---------------------------------------------------------------- ranks


def test_recall_at_k_by_hand():
    # Far apart, so the ranks are 1 and 3 (σ(-100) = 4e-44). k = 1: 1 - (σ(0) + σ(-2)) / 1 = .3807970…;
    # k = 2: 1 - (σ(1) + σ(-1)) / 2 = 1/2.
    terms = later_oracles.recall_at_k(page([1.0, -1.0], [0.0]), ks=(1, 2))
    assert value(terms) == exactly(0.4403985389889412)


def test_recall_at_k_of_a_soft_rank():
    # Rank 1 + σ(ln 3) = 1.75; 1 - σ(1 - 1.75) = σ(.75)
    terms = later_oracles.recall_at_k(page([0.0], [0.01 * LN3]), ks=(1,))
    assert value(terms) == exactly(0.679178699175393)


def test_recall_at_k_defaults():
    # Rank 1: the mean of σ(0), σ(-1), σ(-3), σ(-7), σ(-15)
    assert value(later_oracles.recall_at_k(page([1.0], [0.0]))) == exactly(0.1634557303288379)


def test_smooth_ap_by_hand():
    # Similarities one step of σ = 3/4 apart (two steps: 9/10): negative, positive i, positive k.
    # i: (1 + 1/4) / (1 + 1/4 + 3/4) = 5/8. k: (1 + 3/4) / (1 + 3/4 + 9/10) = 35/53. 1 - (5/8 + 35/53) / 2
    step = 0.01 * LN3
    assert value(later_oracles.smooth_ap(page([0.0, -step], [step]))) == exactly(303 / 848)


def test_roadmap_ap_by_hand():
    # As above, t = one and two steps, both in (0, δ]: .5 + 3/4 and .5 + 9/10; positives by the exact step.
    # i: 1 / (1 + 5/4) = 4/9. k: 2 / (2 + 7/5) = 10/17. 1 - (4/9 + 10/17) / 2
    step = 0.01 * LN3
    assert value(later_oracles.roadmap_ap(page([0.0, -step], [step]))) == exactly(74 / 153)


@pytest.mark.parametrize(
    ("s_n", "expected"),
    [
        (-0.01 * LN3, 1 / 5),  # σ = 1/4: 1 - 1 / 1.25
        (0.0, 1 / 3),  # t = 0: σ = 1/2, without the half
        (0.25, 21.44 / 22.44),  # 100 (.25 - .05) + 1.44 = 21.44
    ],
)
def test_roadmap_ap_of_each_branch(s_n, expected):
    assert value(later_oracles.roadmap_ap(page([0.0], [s_n]))) == exactly(expected)


def test_roadmap_counts_equal_positives():
    # H(0) = 1: both have rank 2 among the positives, and each the negative below by σ = 1/4: 2 / 2.25 = 8/9.
    terms = later_oracles.roadmap_ap(page([0.0, 0.0], [-0.01 * LN3]))
    assert value(terms) == exactly(1 / 9)


def test_roadmap_calibration_by_hand():
    # Positives .8, .95: (.1 + 0) / 2. Negatives .7, .6, 0, -1: (.1 + 0 + 0 + 0) / 4.
    assert value(later_oracles.roadmap_calibration(page([0.8, 0.95], [0.7, 0.6, 0.0, -1.0]))) == exactly(
        0.075
    )


def test_roadmap_defaults():
    # t = .8: 100 · .75 + 1.44 = 76.44, 76.44 / 77.44; calibration [.9 - 0] + [.8 - .6] = 1.1
    assert value(later_oracles.roadmap(page([0.0], [0.8]))) == exactly(2.087086776859504)
    # t = -.01 ln 3: σ = 1/4, 1 - 1 / 1.25 = .2; calibration .9
    assert value(later_oracles.roadmap(page([0.0], [-0.01 * LN3]))) == exactly(1.1)


def test_roadmap_slopes():
    # t = .2: x = 100 · .15 + 1.44 = 16.44; x / (1 + x) has slope 100 / 17.44² in t; calibration: -1 and 1.
    slope = 100 / 17.44**2
    assert slopes(later_oracles.roadmap, 0.6, 0.8) == [exactly(-slope - 1), exactly(slope + 1)]


# ---------------------------------------------------------------- queries with nothing to learn

OVER_PAIRS = [
    "multi_similarity",
    "circle",
    "supervised_contrastive",
    "recall_at_k",
    "smooth_ap",
    "roadmap_ap",
]


@pytest.mark.parametrize("name", OVER_PAIRS)
def test_a_query_without_positives_has_the_term_0(name):
    # Image 2 is alone in its class; it is not its own positive.
    images = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    terms = getattr(later_oracles, name)(Batch(images, [0, 0, 1]))
    assert terms[2].item() == 0
    assert min(terms[0].item(), terms[1].item()) > 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("multi_similarity", 0.0),
        ("circle", 0.0),
        ("smooth_ap", 0.0),
        ("roadmap_ap", 0.0),
        ("supervised_contrastive", math.log(2)),  # two equal positives: -log(1/2)
        ("recall_at_k", 0.3775406687981454),  # k = 2, both of rank 1.5: 1 - 2 σ(.5) / 2 = σ(-.5)
        ("roadmap_calibration", 0.9),
    ],
)
def test_a_query_without_negatives(name, expected):
    settings = {"ks": (2,)} if name == "recall_at_k" else {}
    assert value(getattr(later_oracles, name)(page([0.0, 0.0], []), **settings)) == exactly(expected)


def test_calibration_without_positives_keeps_the_negatives():
    assert value(later_oracles.roadmap(page([], [0.8]))) == exactly(0.2)
