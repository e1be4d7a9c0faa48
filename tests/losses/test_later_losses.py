"""The later losses by hand: tiny lists worked out in plain Python, and what ranks and mixtures cost."""

import math
from dataclasses import replace

import pytest
import torch

from firstpage import Pairs, losses, mining
from firstpage.losses import ranking
from support.batches import batch

E = math.exp


def listed(positives, negatives):
    """One query with candidates at these similarities."""
    scores = torch.tensor([*positives, *negatives], dtype=torch.float64)
    others = torch.stack([scores, (1 - scores.square()).sqrt()], dim=1)
    same = torch.tensor([1] * len(positives) + [0] * len(negatives))
    return Pairs.of(torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([1]), others, same)


def sigmoid(x):
    return 1 / (1 + E(-x)) if x > -700 else 0.0


def test_proxy_anchor_by_hand():
    """Two images of class 0, one of class 1, none of class 2."""
    similarity = torch.tensor([[0.9, 0.2, 0.1], [0.5, 0.4, -0.3], [0.3, 0.6, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    same = labels[:, None] == torch.arange(3)
    pairs = replace(listed([0.5], []), labels=labels, similarity=similarity, positive=same, negative=~same)
    alpha, delta = 4.0, 0.1
    pull = [math.log(1 + E(-4 * 0.8) + E(-4 * 0.4)), math.log(1 + E(-4 * 0.5))]
    push = [
        math.log(1 + E(4 * 0.4)),
        math.log(1 + E(4 * 0.3) + E(4 * 0.5)),
        math.log(1 + E(4 * 0.2) + E(4 * -0.2) + E(4 * 0.1)),
    ]
    terms = losses.proxy_anchor(pairs, alpha, delta)
    assert terms.mean().item() == pytest.approx(sum(pull) / 2 + sum(push) / 3)
    # The third image has all of its class's pull and of the push of proxy 0, and its part of that of proxy 2.
    part = E(4 * 0.1) / (E(4 * 0.2) + E(4 * -0.2) + E(4 * 0.1))
    assert terms[2].item() == pytest.approx(3 * (pull[1] / 2 + (push[0] + part * push[2]) / 3))


def test_proxy_anchor_counts_only_proxies_with_images_among_those_that_pull():
    """More classes that are in no batch change the second average alone."""
    few = Pairs.of(torch.eye(3)[:2], torch.tensor([0, 1]), torch.eye(3)[:2], torch.arange(2))
    many = Pairs.of(
        torch.eye(3)[:2], torch.tensor([0, 1]), torch.eye(3)[[0, 1, 2, 2]], torch.tensor([0, 1, 2, 3])
    )
    pull, near, far = math.log(1 + E(-32 * 0.9)), math.log(1 + E(3.2)), math.log(1 + 2 * E(3.2))
    assert losses.proxy_anchor(few).mean().item() == pytest.approx(pull + near)
    assert losses.proxy_anchor(many).mean().item() == pytest.approx(pull + (2 * near + 2 * far) / 4)


def test_multi_similarity_by_hand():
    """min s_p = 0.5 and max s_n = 0.7: all positives below 0.8 and all negatives above 0.4 are kept."""
    pairs = listed([0.9, 0.75, 0.5], [0.7, 0.45, 0.3])
    mined = mining.multi_similarity(0.1)(pairs, None)
    assert mined.positive_mask.tolist() == [[False, True, True, False, False, False]]
    assert mined.negative_mask.tolist() == [[False, False, False, True, True, False]]
    expected = math.log(1 + E(-2 * 0.25) + E(0.0)) / 2 + math.log(1 + E(50 * 0.2) + E(50 * -0.05)) / 50
    assert losses.MultiSimilarity().of(pairs).item() == pytest.approx(expected)
    every = losses.MultiSimilarity(mining=mining.product("all", "all")).of(pairs).item()
    more = math.log(1 + E(-0.8) + E(-0.5) + E(0.0)) / 2
    assert every == pytest.approx(more + math.log(1 + E(10.0) + E(-2.5) + E(-10.0)) / 50)


@pytest.mark.parametrize("missing", ["positives", "negatives"])
@pytest.mark.parametrize("name", ["multi-similarity", "circle"])
def test_a_list_of_one_kind_has_nothing_to_learn(name, missing):
    pairs = listed([], [0.9, 0.2]) if missing == "positives" else listed([0.9, 0.2], [])
    assert losses.create(name).of(pairs).item() == 0


def test_soft_triple_by_hand():
    """Two classes of two centers."""
    centers = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    query = torch.tensor([[0.8, 0.6]], dtype=torch.float64)
    pairs = Pairs.of(query, torch.tensor([1]), centers, torch.tensor([0, 0, 1, 1]))

    def soft(a, b):
        return (a * E(a / 0.5) + b * E(b / 0.5)) / (E(a / 0.5) + E(b / 0.5))

    own, other = soft(0.6, -0.8), soft(0.8, 0.96)
    cost = math.log(1 + E(5 * (other - own + 0.1)))
    spread = (math.sqrt(2 + 1e-5 - 1.2) + math.sqrt(2 + 1e-5)) / (2 * 2 * 1)
    terms = losses.soft_triple(pairs, per_class=2, scale=5.0, gamma=0.5, delta=0.1, tau=0.3)
    assert terms.item() == pytest.approx(cost + 0.3 * spread)


def test_soft_triple_with_one_center_is_a_softmax():
    embeddings, labels = batch(30, count=8)
    loss = losses.SoftTriple(classes=4, dim=5, per_class=1, delta=0.0).double()
    logits = 20 * torch.nn.functional.normalize(embeddings, dim=1) @ unit(loss.proxies).T
    torch.testing.assert_close(loss(embeddings, labels), torch.nn.functional.cross_entropy(logits, labels))


def unit(vectors):
    return torch.nn.functional.normalize(vectors, dim=1)


def test_centers_that_have_merged_have_finite_gradients():
    loss = losses.SoftTriple(classes=2, dim=3, per_class=4)
    with torch.no_grad():
        loss.proxies.copy_(torch.randn(2, 3).repeat_interleave(4, dim=0))
    loss(torch.randn(4, 3), torch.tensor([0, 0, 1, 1])).backward()
    assert loss.proxies.grad.isfinite().all()


def test_a_label_without_proxy_has_no_cross_entropy():
    """On a GPU labels are not looked at; here the function is called without the look."""
    pairs = Pairs.of(torch.eye(2), torch.tensor([0, 7]), torch.eye(2), torch.arange(2))
    assert losses.soft_triple(pairs, per_class=1)[1].item() == 0
    assert losses.proxy_anchor(pairs).isfinite().all()


def ranks(positives, negatives, step):
    """1 + how many candidates are above each positive, softly."""
    everyone = [*positives, *negatives]
    return [1 + sum(step(z - x) for j, z in enumerate(everyone) if j != i) for i, x in enumerate(positives)]


@pytest.mark.parametrize("ks", [(1,), (2, 16), (1, 2, 4)])
def test_recall_at_k_by_hand(ks):
    positives, negatives = [0.9, 0.6, 0.2], [0.7, 0.61, 0.1, -0.5]
    found = ranks(positives, negatives, lambda t: sigmoid(t / 0.02))
    recalls = [sum(sigmoid(k - rank) for rank in found) / min(k, 3) for k in ks]
    ours = losses.recall_at_k(listed(positives, negatives), ks, temperature=0.02)
    assert ours.item() == pytest.approx(1 - sum(recalls) / len(ks))


def test_recall_at_k_needs_no_positive_far_beyond_k():
    """All 300 positives of a list, and those it ranks: the same to the last digits."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(400, generator=generator, dtype=torch.float64)
    pairs = listed(scores[:300].tolist(), scores[300:].tolist())
    found = ranks(scores[:300].tolist(), scores[300:].tolist(), lambda t: sigmoid(t / 0.01))
    expected = 1 - sum(sigmoid(4 - rank) for rank in found) / 4
    assert losses.recall_at_k(pairs, (4,)).item() == pytest.approx(expected, rel=1e-12)
    tied = listed([0.5] * 300, [0.5] * 100)  # every rank is 200.5
    assert losses.recall_at_k(tied, (4,)).item() == pytest.approx(1, abs=1e-15)


def test_smooth_ap_by_hand():
    positives, negatives = [0.9, 0.6, 0.2], [0.7, 0.61, 0.1, -0.5]

    def step(t):
        return sigmoid(t / 0.02)

    among, overall = ranks(positives, [], step), ranks(positives, negatives, step)
    expected = 1 - sum(a / b for a, b in zip(among, overall, strict=True)) / 3
    assert losses.smooth_ap(listed(positives, negatives), 0.02).item() == pytest.approx(expected)


def test_smooth_ap_of_a_cold_sigmoid_is_the_average_precision():
    """Ranks 1, 3, 6 of positives: AP = (1 + 2/3 + 3/6) / 3."""
    pairs = listed([0.9, 0.5, 0.1], [0.7, 0.3, 0.2, -0.6])
    assert losses.smooth_ap(pairs, 1e-4).item() == pytest.approx(1 - (1 + 2 / 3 + 3 / 6) / 3)


def test_roadmap_by_hand():
    positives, negatives = [0.9, 0.6, 0.2], [0.7, 0.61, 0.1, -0.5]

    def step(t):
        if t <= 0:
            return sigmoid(t / 0.01)
        return 0.5 + sigmoid(t / 0.01) if t <= 0.05 else 100 * (t - 0.05) + 1.44

    above = [sum(step(n - x) for n in negatives) for x in positives]
    bound = 1 - sum(rank / (rank + more) for rank, more in zip((1, 2, 3), above, strict=True)) / 3
    pull = (0.0 + 0.3 + 0.7) / 3
    push = (0.1 + 0.01) / 4
    pairs = listed(positives, negatives)
    assert losses.roadmap(pairs, calibration=0.0).item() == pytest.approx(bound)
    assert losses.roadmap(pairs).item() == pytest.approx(bound + pull + push)
    assert losses.roadmap(pairs, calibration=0.5).item() == pytest.approx(bound + (pull + push) / 2)


def test_roadmap_is_an_upper_bound_of_the_average_precision_loss():
    for seed in range(20):
        scores = torch.rand(12, generator=torch.Generator().manual_seed(seed)).tolist()
        pairs = listed(scores[:4], scores[4:])
        exact = losses.smooth_ap(pairs, 1e-7).item()
        assert losses.roadmap(pairs, calibration=0.0).item() >= exact - 1e-6


def test_circle_by_hand():
    positives, negatives = [0.9, 0.3], [0.5, -0.6, 0.1]
    push = sum(E(8 * max(0, s + 0.4) * (s - 0.4)) for s in negatives)
    pull = sum(E(-8 * max(0, 1.4 - s) * (s - 0.6)) for s in positives)
    ours = losses.circle(listed(positives, negatives), scale=8.0)
    assert ours.item() == pytest.approx(math.log(1 + push * pull))


def test_the_weights_of_circle_are_constants():
    """The gradient of a similarity: a softmax weight times γ[·]₊, nothing from [·]₊ itself."""
    plain = listed([0.9, 0.3], [0.5, -0.6, 0.1])
    similarity = plain.similarity.detach().requires_grad_()
    losses.circle(replace(plain, similarity=similarity), scale=8.0).sum().backward()
    pace = torch.tensor([0.5, 1.1, 0.9, 0.0, 0.5], dtype=torch.float64)
    kind = torch.tensor([-1, -1, 1, 1, 1])
    exponent = 8 * kind * pace * (plain.similarity[0] - torch.where(kind < 0, 0.6, 0.4))
    total = exponent[:2].logsumexp(0) + exponent[2:].logsumexp(0)
    softmax = torch.cat([exponent[:2].softmax(0), exponent[2:].softmax(0)])
    torch.testing.assert_close(similarity.grad[0], 8 * kind * pace * softmax * total.sigmoid())


def test_supervised_contrastive_by_hand():
    total = E(9.0) + E(3.0) + E(5.0) + E(-6.0)
    expected = -(math.log(E(9.0) / total) + math.log(E(3.0) / total)) / 2
    assert losses.supervised_contrastive(listed([0.9, 0.3], [0.5, -0.6])).item() == pytest.approx(expected)


def test_supervised_contrastive_with_one_positive_is_batch_all():
    embeddings, _ = batch(31, count=12)
    labels = torch.arange(12) // 2
    ours, other = (
        losses.create(name, reduction="none")(embeddings, labels) for name in ("supcon", "batch-all")
    )
    torch.testing.assert_close(ours, other)


# ---------------------------------------------------------------- ranks


@pytest.mark.parametrize("name", ["recall-at-k", "smooth-ap", "roadmap"])
def test_blocks_bound_what_is_in_memory_and_change_nothing(name, monkeypatch):
    embeddings, labels = batch(32, count=40)
    loss = losses.create(name, reduction="none")
    expected = loss(embeddings, labels)
    (gradient,) = torch.autograd.grad(expected.sum(), embeddings)
    sizes = []
    for function in ("value", "derivative"):
        original = getattr(ranking.Step, function)

        def measured(self, t, original=original):
            sizes.append(t.numel())
            return original(self, t)

        monkeypatch.setattr(ranking.Step, function, measured)
    for block in (40 * 25, 100, 1):  # several rows, a part of a row, less than a row
        monkeypatch.setattr(ranking, "BLOCK", block)
        sizes.clear()
        terms = loss(embeddings, labels)
        torch.testing.assert_close(terms, expected)
        torch.testing.assert_close(torch.autograd.grad(terms.sum(), embeddings)[0], gradient)
        assert max(sizes) <= max(block, 40)


@pytest.mark.parametrize("name", ["recall-at-k", "smooth-ap", "roadmap"])
def test_ranks_where_the_labels_are_not_looked_at(name, monkeypatch):
    """As on a GPU: as many slots as there are candidates, most of them empty."""
    embeddings, labels = batch(33, count=14)
    loss = losses.create(name, reduction="none")
    expected = loss(embeddings, labels)
    (gradient,) = torch.autograd.grad(expected.sum(), embeddings)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    terms = loss(embeddings, labels)
    torch.testing.assert_close(terms, expected)
    torch.testing.assert_close(torch.autograd.grad(terms.sum(), embeddings)[0], gradient)


def test_the_counts_are_a_well_formed_operation():
    embeddings, labels = batch(34, count=6)
    pairs = Pairs.of(embeddings, labels)
    similarity = pairs.similarity.detach().requires_grad_()
    bound = similarity.detach()[:, :3].clone().requires_grad_()
    arguments = (similarity, bound, pairs.positive, pairs.negative, list(ranking.Step(0.1)))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")  # test_losses compiles it
    torch.library.opcheck(torch.ops.firstpage.count_above.default, arguments, test_utils=checks)


def test_some_of_many_positives_stand_for_all(monkeypatch):
    """600 positives among 900: 256 of them, evenly spread, have nearly the average precision of all."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(900, generator=generator, dtype=torch.float64)
    pairs = listed(scores[:600].tolist(), scores[600:].tolist())
    index, mask, above = ranking.spread_positives(pairs)
    assert mask.all()
    assert index.unique().numel() == 256
    assert (above.diff() > 0).all()
    assert (above[0, 0], above[0, -1]) == (1, 598)
    some = [losses.smooth_ap(pairs).item(), losses.roadmap(pairs).item()]
    for loss, value in zip((losses.smooth_ap, losses.roadmap), some, strict=True):
        monkeypatch.setattr(loss.__globals__["spread_positives"], "__defaults__", (600,))
        assert value == pytest.approx(loss(pairs).item(), abs=2e-3)


def test_positives_that_tie_are_not_above_one_another():
    _, mask, above = ranking.spread_positives(listed([0.5, 0.5, 0.7, 0.5], [0.9]))
    assert mask.all()
    assert above.tolist() == [[0, 1, 1, 1]]


# ---------------------------------------------------------------- mixtures


def test_mixed_images_are_mixtures_of_a_query_and_one_of_its_positives():
    embeddings, labels = batch(35, count=9)
    pairs = Pairs.of(embeddings, labels)
    more = losses.simix(pairs, 2, torch.Generator().manual_seed(0))
    assert more.similarity.shape == more.positive.shape == more.negative.shape == (27, 27)
    vectors = unit(embeddings)
    for row in range(18):
        query, mixed = vectors[row % 9], more.queries[9 + row]
        if not pairs.positive[row % 9].any():
            assert not (more.positive | more.negative)[9 + row].any()
            assert not (more.positive | more.negative)[:, 9 + row].any()
            continue
        fits = [
            partner
            for partner in pairs.positive[row % 9].nonzero().flatten().tolist()
            if 0 <= (a := mixture(mixed, query, vectors[partner])) <= 1
            and torch.allclose(mixed, a * query + (1 - a) * vectors[partner])
        ]
        assert len(fits) == 1
        kin = {row % 9, fits[0]}
        for column in range(9):
            same = labels[row % 9] == labels[column]
            assert (
                more.positive[9 + row, column]
                == more.positive[column, 9 + row]
                == (bool(same) and column not in kin)
            )
            assert more.negative[9 + row, column] == more.negative[column, 9 + row] == (not same)
    torch.testing.assert_close(more.similarity[9:, :9], more.queries[9:] @ vectors.T)
    torch.testing.assert_close(more.similarity[9:, 9:], more.queries[9:] @ more.queries[9:].T)
    torch.testing.assert_close(more.similarity[:9, :9], pairs.similarity)


def mixture(mixed, x, z):
    """The α of αx + (1 − α)z, by least squares."""
    return torch.linalg.lstsq((x - z)[:, None], (mixed - z)[:, None]).solution.item()


def test_mixing_averages_over_a_query_and_its_mixtures():
    embeddings, labels = batch(36, count=9)
    pairs = Pairs.of(embeddings, labels)
    loss = losses.RecallAtK(simix=2, reduction="none", generator=torch.Generator().manual_seed(3))
    terms = losses.recall_at_k(losses.simix(pairs, 2, torch.Generator().manual_seed(3)))
    expected = torch.stack([terms[:9], terms[9:18], terms[18:]]).mean(dim=0)
    torch.testing.assert_close(loss(embeddings, labels), expected)
    assert not torch.equal(loss(embeddings, labels), expected)  # the generator went on: other draws


def test_mixing_against_candidates_of_ones_own():
    queries, labels = batch(37, count=5)
    candidates, candidate_labels = batch(38, count=8)
    loss = losses.RecallAtK(simix=1)
    value = loss(queries, labels, candidates, candidate_labels)
    value.backward()
    assert value.isfinite()
    assert queries.grad.isfinite().all()
    assert candidates.grad.abs().sum() > 0
    more = losses.simix(Pairs.of(queries, labels, candidates, candidate_labels))
    assert more.similarity.shape == (10, 13)
    assert not (more.positive & more.negative).any()


@pytest.mark.parametrize("labels", [torch.arange(6), torch.zeros(6, dtype=torch.long), torch.arange(6) // 2])
def test_mixing_any_batch_is_finite(labels):
    embeddings = torch.ones(6, 8, requires_grad=True)
    value = losses.RecallAtK(simix=2)(embeddings, labels)
    value.backward()
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()


def test_mixing_does_not_wait_for_the_device():
    embeddings = torch.empty(12, 8, device="meta", requires_grad=True)
    loss = losses.RecallAtK(simix=2)
    loss(embeddings, torch.empty(12, dtype=torch.long, device="meta")).backward()
    assert embeddings.grad.shape == embeddings.shape
