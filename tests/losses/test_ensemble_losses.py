"""Ensembles of learners: what each sees and how far apart they are kept, against loops over pairs."""

import pytest
import torch
from test_cost import IMAGES, Largest
from torch import nn

from firstpage import losses
from firstpage.losses import Ensemble, diversity
from firstpage.pairs import Pairs
from support import ensemble_oracles, oracles
from support.batches import CLASSES, batch, sized

DIMS = (3, 5, 4)
PERCENTS = (100, 50, 20)


pytestmark = pytest.mark.usefixtures("one_thread")


def learners_of(seed=0, count=11, dims=DIMS, spread=1.5, twice=False):
    """The vectors of the same images by several learners, perhaps one image twice, and labels."""
    labels = batch(seed, count)[1]
    vectors = [batch(seed, count, dim, spread=spread)[0].detach() for dim in dims]
    for part in vectors if twice else ():
        part[1] = part[0]
    return [part.requires_grad_() for part in vectors], labels


def gradients(value, vectors):
    found = torch.autograd.grad(value, vectors, allow_unused=True)
    return [torch.zeros_like(part) if one is None else one for part, one in zip(vectors, found, strict=True)]


def assert_equal(value, expected, vectors, values=True):
    if values:
        torch.testing.assert_close(value, expected)
    for mine, wanted in zip(gradients(value, vectors), gradients(expected, vectors), strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("seed", range(4))
def test_a_cascade_passes_on_the_hardest_pairs(seed):
    vectors, labels = learners_of(seed, twice=True)
    pairs = [Pairs.of(part, labels) for part in vectors]
    ensemble = Ensemble([losses.Contrastive(form="linear") for _ in DIMS], "cascade")
    batches = [oracles.Batch(part, labels) for part in vectors]
    seen = ensemble_oracles.hard_shares(batches, PERCENTS)
    for mine, (positives, negatives) in zip(ensemble.cascaded(pairs), seen, strict=True):
        assert sorted(map(tuple, mine.positive.nonzero().tolist())) == sorted(positives)
        assert sorted(map(tuple, mine.negative.nonzero().tolist())) == sorted(negatives)
    expected = sum(
        ensemble_oracles.hdc_contrastive(part, *kept) for part, kept in zip(batches, seen, strict=True)
    )
    assert_equal(ensemble(vectors, labels), expected, vectors)


def test_any_loss_learns_from_what_a_cascade_passes_on():
    vectors, labels = learners_of(5, count=14)
    ensemble = Ensemble([losses.TopKPrecision(k=2) for _ in DIMS], "cascade")
    batches = [oracles.Batch(part, labels) for part in vectors]
    expected = oracles.zero()
    for part, kept in zip(batches, ensemble_oracles.hard_shares(batches, PERCENTS), strict=True):
        expected = expected + oracles.topk(ensemble_oracles.Restricted(part, *kept), 2, 0.1).mean()
    assert_equal(ensemble(vectors, labels), expected, vectors)


@pytest.mark.parametrize("seed", range(3))
def test_boosted_learners_weigh_pairs_by_what_is_still_wrong(seed):
    vectors, labels = learners_of(seed, twice=True)
    ensemble = Ensemble([losses.BinomialDeviance() for _ in DIMS], "boost")
    batches = [oracles.Batch(part, labels) for part in vectors]
    seen = ensemble.boosted([Pairs.of(part, labels) for part in vectors])
    for part, weights in zip(seen[1:], ensemble_oracles.binomial_weights(batches)[1:], strict=True):
        for (q, c), weight in weights.items():
            assert part.weights[q, c].item() == pytest.approx(weight, rel=1e-9)
    expected = ensemble_oracles.boosted_binomial(batches)
    assert_equal(ensemble(vectors, labels), expected, vectors, values=False)


@pytest.mark.parametrize(("seed", "k"), [(0, 1), (1, 2), (2, 5)])
def test_a_page_is_boosted_while_it_is_wrong(seed, k):
    vectors, labels = learners_of(seed, count=14, spread=0.7)
    ensemble = Ensemble([losses.TopKPrecision(k=k) for _ in DIMS], "boost")
    batches = [oracles.Batch(part, labels) for part in vectors]
    expected = ensemble_oracles.boosted_pages(batches, k, 0.1)
    assert_equal(ensemble(vectors, labels), expected, vectors, values=False)


def test_weights_stay_when_candidates_become_constants():
    vectors, labels = learners_of(3)
    ensemble = Ensemble([losses.RankedList() for _ in DIMS], "boost")
    seen = ensemble.boosted([Pairs.of(part, labels) for part in vectors])
    weights, single = seen[1].weights.flatten(), losses.RankedList(reduction="none")
    wanted = (weights * single(vectors[1], labels)).mean()
    assert (weights == 0).any() or weights.std() > 0
    assert_equal(ensemble.losses[1].of(seen[1]), wanted, vectors[1:2], values=False)


def test_terms_of_diversity():
    vectors, _ = learners_of(1, count=6)
    alike = [part[:, :3] for part in vectors]
    assert_equal(losses.divergence(alike, 1.7), ensemble_oracles.divergence(alike, 1.7), vectors)
    assert losses.divergence(alike, 1.7) > 0
    assert_equal(losses.activation_overlap(vectors), ensemble_oracles.activation(vectors), vectors)


def test_regressors_raise_what_learners_lower(monkeypatch):
    monkeypatch.setattr(diversity, "HIDDEN", 6)
    vectors, _ = learners_of(2, count=5)
    term = losses.AdversarialDiversity(DIMS).double()
    with torch.no_grad():
        term.regressors[0].hidden.bias.mul_(9)  # longer than 1
    weights = {
        pair: (part.hidden.weight, part.hidden.bias, part.output.weight, part.output.bias)
        for pair, part in zip([(0, 1), (0, 2), (1, 2)], term.regressors, strict=True)
    }
    value, expected = term(vectors), ensemble_oracles.adversarial(vectors, weights)
    torch.testing.assert_close(value, expected)
    mine, wanted = gradients(value, vectors), gradients(expected, vectors)
    assert all(part.abs().max() > 0 for part in mine)
    for one, other in zip(mine, wanted, strict=True):
        torch.testing.assert_close(one, -other)
    parameters = list(term.parameters())
    for one, other in zip(
        gradients(term(vectors), parameters),
        gradients(ensemble_oracles.adversarial(vectors, weights), parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


STRANGE = {
    "no positives": torch.arange(4),
    "one class": torch.zeros(6, dtype=torch.long),
    "duplicates": torch.arange(6) // 2,
}
FEW = ("topk", "margin", "contrastive", "epshn", "rll", "binomial", "first-page")


@pytest.mark.parametrize("rule", ["cascade", "boost"])
@pytest.mark.parametrize("kind", STRANGE)
def test_any_batch_is_finite(kind, rule):
    labels = STRANGE[kind]
    terms = [losses.AdversarialDiversity((5, 5, 5)), losses.ActivationDiversity(), losses.Divergence()]
    for number, name in enumerate(FEW):
        made = [losses.create(name, **sized(name, CLASSES, 5)) for _ in range(3)]
        vectors = [torch.randn(len(labels), 5) for _ in range(3)]
        if kind == "duplicates":  # and zeros
            vectors = [part[:1].repeat(len(labels), 1) * place for place, part in enumerate(vectors)]
        vectors = [part.requires_grad_() for part in vectors]
        value = Ensemble(made, rule, diversity=terms[number % 3])(vectors, labels)
        value.backward()
        assert value.isfinite(), name
        assert all(part.grad is None or part.grad.isfinite().all() for part in vectors), name


def test_the_order_of_a_batch_does_not_matter():
    vectors, labels = learners_of(4)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    for rule in ("cascade", "boost"):
        ensemble = Ensemble([losses.TopKPrecision(k=2) for _ in DIMS], rule)
        shuffled = [part[order] for part in vectors]
        assert_equal(ensemble(shuffled, labels[order]), ensemble(vectors, labels), vectors)


@pytest.mark.parametrize("rule", ["cascade", "boost"])
@pytest.mark.parametrize("name", ["first-page", "binomial"])
def test_a_step_waits_for_nothing(name, rule):
    """On the meta device reading a value fails; see test_cost."""
    made = [losses.create(name, **sized(name, 64, 8)) for _ in range(3)]
    ensemble = Ensemble(made, rule, diversity=losses.AdversarialDiversity((8, 8, 8))).to("meta")
    vectors = [torch.empty(IMAGES, 8, device="meta", requires_grad=True) for _ in range(3)]
    with Largest() as largest:
        ensemble(vectors, torch.empty(IMAGES, dtype=torch.long, device="meta")).backward()
    assert all(part.grad.shape == part.shape for part in vectors)
    assert largest.size <= 8 * IMAGES * (IMAGES + 1)


def test_a_memory_is_seen_by_every_learner():
    vectors, labels = learners_of(6, count=14)
    ensemble = Ensemble([losses.Contrastive(form="linear") for _ in DIMS], "cascade")
    given = [{"candidates": part.detach()[4:], "candidate_labels": labels[4:]} for part in vectors]
    batches = [oracles.Batch(part[:4], labels[:4], part.detach()[4:], labels[4:]) for part in vectors]
    seen = ensemble_oracles.hard_shares(batches, PERCENTS)
    expected = sum(
        ensemble_oracles.hdc_contrastive(part, *kept) for part, kept in zip(batches, seen, strict=True)
    )
    assert_equal(ensemble([part[:4] for part in vectors], labels[:4], given), expected, vectors)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            {"rule": "cascade", "count": 2},
            r"ensemble.shares=\[1.0, 0.5, 0.2\]: give one for each of the 2 learners",
        ),
        ({"rule": "cascade", "shares": [0.5, 0.2, 0.1]}, r"shares=\[0.5, 0.2, 0.1\]: begin with 1.0"),
        ({"rule": "cascade", "shares": [1.0, 0.2, 0.5]}, "let none be larger than the one before"),
        (
            {"rule": "boost", "count": 1},
            "ensemble.rule='boost': the model has one learner: set model.head=split",
        ),
        ({"rule": "best"}, "ensemble.rule='best': choose one of sum, cascade, boost"),
        ({"rule": "boost", "loss": nn.Identity}, "Identity sees no pairs: use ensemble.rule=sum"),
    ],
)
def test_what_is_wrong_is_named(arguments, complaint):
    settings = {"loss": losses.Contrastive, "count": 3, "shares": [1.0, 0.5, 0.2]} | arguments
    made = [settings["loss"]() for _ in range(settings["count"])]
    with pytest.raises(ValueError, match=complaint) as caught:
        Ensemble(made, settings["rule"], settings["shares"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "dims", "complaint"),
    [
        ("divergence", (3, 5), "compares learners of one size, not .3, 5.: choose activation or adversarial"),
        ("activation", (5,), "the model has one learner"),
        ("distance", (5, 5), "choose one of activation, adversarial, divergence, none"),
    ],
)
def test_what_is_wrong_with_a_term_is_named(name, dims, complaint):
    with pytest.raises(ValueError, match=complaint):
        losses.create_diversity(name, dims)
    with pytest.raises(ValueError, match=r"ensemble\.margin=5: is a squared distance"):
        losses.Divergence(margin=5)
