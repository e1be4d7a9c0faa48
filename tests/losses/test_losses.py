"""Every loss against its oracle, and against every batch that could break it."""

import inspect

import numpy as np
import pytest
import torch

from firstpage import Pairs, losses, mining
from firstpage.losses.registry import _ROWS
from support import later_oracles, oracles
from support.batches import BUILDS, CASES, CLASSES, DIM, batch, sized

EVERY = losses.names()
WITH_PROXIES = {name for name in EVERY if "dim" in losses.required_arguments(name)}
DETERMINISTIC = [n for n in EVERY if n not in ("margin", "triplet-uniform", "triplet-distance")]


def create(name, **settings):
    settings = sized(name, classes=16, dim=8) | settings
    if name == "margin":
        settings = {"classes": 16} | settings
    torch.manual_seed(0)
    return losses.create(name, **settings)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_terms_and_gradients_equal_the_oracle(name, seed):
    embeddings, labels = batch(seed)
    loss = CASES[name].build(reduction="none")
    ours = loss(embeddings, labels)
    theirs = CASES[name].oracle(oracles.Batch(embeddings, labels)) + 0 * embeddings.sum()
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    weights = torch.linspace(0.5, 1.5, len(labels), dtype=torch.float64)
    (ours_gradient,) = torch.autograd.grad(ours @ weights, embeddings)
    (theirs_gradient,) = torch.autograd.grad(theirs @ weights, embeddings)
    torch.testing.assert_close(ours_gradient, theirs_gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_mean_of_proxy_anchor_equals_the_oracle(seed):
    """Its terms share a figure of the batch out over the queries, so only their mean has an oracle."""
    embeddings, labels = batch(seed)
    loss = BUILDS["proxy-anchor"]()
    expected = later_oracles.proxy_anchor(oracles.Batch(embeddings, labels), loss.proxies).mean()
    value = loss(embeddings, labels)
    torch.testing.assert_close(value, expected)
    wanted = [embeddings, loss.proxies]
    for mine, other in zip(*(torch.autograd.grad(each, wanted) for each in (value, expected)), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("name", CASES)
def test_queries_against_other_candidates_equal_the_oracle(name):
    queries, labels = batch(3, count=6)
    candidates, candidate_labels = batch(4, count=9)
    loss = CASES[name].build(reduction="none")
    ours = loss(queries, labels, candidates, candidate_labels)
    theirs = CASES[name].oracle(oracles.Batch(queries, labels, candidates, candidate_labels))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    ours_gradients, theirs_gradients = (
        # so that a constant side has the gradient 0, not None
        torch.autograd.grad(terms.sum() + 0 * (queries.sum() + candidates.sum()), [queries, candidates])
        for terms in (ours, theirs)
    )
    for mine, other in zip(ours_gradients, theirs_gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", BUILDS)
def test_the_batch_passed_as_candidates_with_ids_is_the_batch(name):
    embeddings, labels = batch(5)
    ids = torch.randperm(len(labels))
    loss = BUILDS[name](reduction="none")
    alone = loss(embeddings, labels)
    gathered = loss(embeddings, labels, embeddings.clone(), labels, image_ids=ids, candidate_ids=ids)
    torch.testing.assert_close(alone, gathered)


@pytest.mark.parametrize("name", BUILDS)
def test_order_of_the_batch_does_not_matter(name):
    embeddings, labels = batch(6)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    loss = BUILDS[name](reduction="none")
    if "npair" in name:  # its pairs are the first two of a class: keep that order within classes
        order = order[labels[order].argsort(stable=True)]
        order = torch.cat([order[labels[order] == c].sort().values for c in (2, 0, 3, 1)])
    torch.testing.assert_close(loss(embeddings, labels)[order], loss(embeddings[order], labels[order]))


@pytest.mark.parametrize("name", [n for n in BUILDS if n not in ("rll", "circle")])  # they hold constants
def test_gradcheck(name):
    embeddings, labels = batch(7, count=8)
    loss = BUILDS[name]()
    assert torch.autograd.gradcheck(lambda e: loss(e, labels), (embeddings,), eps=1e-7, atol=1e-5)


def test_gradcheck_of_ranked_list_with_constant_candidates():
    # Its candidates and weights are constants, so a finite difference of the whole would see too much:
    # check the part of the queries, with one candidate inside the band, whose weight is 1 whatever it is.
    queries, candidates = torch.randn(4, 3).double().requires_grad_(), torch.randn(5, 3).double()
    loss = losses.RankedList(alpha=2.0, temperature=0.0)
    labels, candidate_labels = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1, 1])
    assert torch.autograd.gradcheck(lambda q: loss(q, labels, candidates, candidate_labels), (queries,))


@pytest.mark.parametrize("name", EVERY)
def test_reductions_agree(name):
    embeddings, labels = batch(8, count=12, dim=8, classes=3)
    terms, mean, total = (
        (torch.manual_seed(0), create(name, reduction=reduction).double()(embeddings, labels))[1]
        for reduction in ("none", "mean", "sum")
    )
    assert terms.shape == (12,)
    torch.testing.assert_close(terms.mean(), mean)
    torch.testing.assert_close(terms.sum(), total)


STRANGE = {
    "no positives": lambda: (torch.randn(6, 8), torch.arange(6)),
    "one class": lambda: (torch.randn(6, 8), torch.zeros(6, dtype=torch.long)),
    "one image": lambda: (torch.randn(1, 8), torch.zeros(1, dtype=torch.long)),
    "duplicated images": lambda: (torch.randn(5, 8).repeat(2, 1), torch.arange(10) % 3),
    "all the same image": lambda: (torch.ones(8, 8), torch.arange(8) // 2),
    "zero vectors": lambda: (torch.zeros(8, 8), torch.arange(8) // 2),
    "opposite vectors": lambda: (
        torch.randn(1, 8) * torch.tensor([1.0, -1.0] * 4)[:, None],
        torch.arange(8) // 2,
    ),
    "two images": lambda: (torch.randn(2, 8), torch.tensor([0, 1])),
    "long vectors": lambda: (1e4 * torch.randn(12, 8), torch.arange(12) // 3),
}


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("name", EVERY)
def test_any_batch_gives_finite_loss_and_gradients(name, strange):
    torch.manual_seed(1)
    embeddings, labels = STRANGE[strange]()
    embeddings.requires_grad_()
    loss = create(name)
    if name == "spectral-clust" and len(embeddings) <= 8:
        with pytest.raises(ValueError, match="more images than dimensions"):
            loss(embeddings, labels)
        return
    value = loss(embeddings, labels)
    value.backward()
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()
    for parameter in loss.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


@pytest.mark.parametrize("name", sorted(set(EVERY) - WITH_PROXIES - {"spectral-clust"}))
def test_nothing_to_learn_is_zero_and_backpropagates(name):
    embeddings = torch.randn(1, 8, requires_grad=True)
    value = create(name)(embeddings, torch.tensor([3]))
    value.backward()
    assert value.item() == 0
    assert embeddings.grad.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", EVERY)
def test_autocast_computes_in_float32(name, dtype):
    generator = torch.Generator().manual_seed(2)
    network = torch.nn.Linear(16, 8, bias=False)
    torch.nn.init.normal_(network.weight, generator=generator)
    images, labels = torch.randn(32, 16, generator=generator), torch.arange(32) // 4
    loss = create(name)
    with torch.autocast("cpu", dtype=dtype):
        embeddings = network(images)
        assert embeddings.dtype == dtype
        torch.manual_seed(3)
        value = loss(embeddings, labels)
    assert value.dtype == torch.float32
    torch.manual_seed(3)
    torch.testing.assert_close(value, loss(embeddings.float(), labels))
    value.backward()
    assert network.weight.grad.isfinite().all()


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"spectral-clust"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_thousand_dimensions(name, dtype):
    torch.manual_seed(4)
    embeddings = torch.randn(24, 1024).to(dtype).requires_grad_()
    value = create(name, **sized(name, classes=16, dim=1024))(embeddings, torch.arange(24) // 3)
    value.backward()
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()


@pytest.mark.parametrize(("spread", "easy"), [(0.8, True), (10.0, False)])
def test_a_whole_page_is_asked_for_where_most_first_results_are_right(spread, easy):
    embeddings, labels = batch(11, count=16, spread=spread)
    value = losses.TopKPrecision(k=(1, 3), margin=0.2, reduction="none", whole=True)(embeddings, labels)
    torch.testing.assert_close(value, CASES["topk-whole"].oracle(oracles.Batch(embeddings, labels)))
    pages = losses.TopKPrecision(k=(1, 3), margin=0.2, reduction="none")(embeddings, labels)
    assert torch.equal(value, pages) != easy


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_compiles_to_one_graph(name, monkeypatch):
    torch.compiler.reset()
    # Torch measures how long its guards take after emptying the processor's caches: 0.04 s each.
    monkeypatch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *_: 0.0, raising=False)
    embeddings, labels = batch(9, count=16, dim=8, classes=4, dtype=torch.float32)
    loss = create(name)
    # That there is one graph is the claim; that autograd can trace it, too, is shown for the default loss.
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager" if name == "topk" else "eager")
    expected, value = loss(embeddings, labels), compiled(embeddings, labels)
    torch.testing.assert_close(value, expected)
    for mine, other in zip(
        torch.autograd.grad(value, embeddings), torch.autograd.grad(expected, embeddings), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positives", ["all", "easy", "hard", "random"])
@pytest.mark.parametrize("negatives", ["all", "hard", "semihard", "uniform", "distance_weighted"])
@pytest.mark.parametrize("kind", ["triplet", "nca", "angular", "contrastive", "margin"])
def test_the_whole_mining_grid(kind, positives, negatives):
    """Each loss over each point of the grid, re-derived from the index triplets or pairs it was mined."""
    embeddings, labels = batch(10, count=9)
    pairs = Pairs.of(embeddings, labels)
    mined = mining.mine(pairs, positives, negatives, generator=torch.Generator().manual_seed(5))
    naive = oracles.Batch(embeddings, labels)
    if kind in ("contrastive", "margin"):
        (a, p), (b, n) = mined.pairs()
        positive = torch.stack([naive.d(int(i), int(j)) for i, j in zip(a, p, strict=True)])
        negative = torch.stack([naive.d(int(i), int(j)) for i, j in zip(b, n, strict=True)])
        if kind == "contrastive":
            ours = losses.contrastive(pairs, mined, 1.0).mean()
            far, near = positive.square(), (1.0 - negative).relu().square()
            expected = far.sum() / (far > 0).sum() + near.sum() / (near > 0).sum().clamp_min(1)
        else:
            ours = losses.margin(pairs, mined, torch.full((9,), 1.2, dtype=torch.float64)).mean()
            cost = torch.cat([(0.2 + positive - 1.2).relu(), (0.2 - negative + 1.2).relu()])
            expected = cost.sum() / (cost > 0).sum()
        torch.testing.assert_close(ours, expected)
        return
    triplets = [tuple(map(int, t)) for t in zip(*mined.triplets(), strict=True)]
    assert triplets
    by_pair = {}
    for a, p, n in triplets:
        by_pair.setdefault((a, p), []).append(n)
    if kind == "triplet":
        ours = losses.triplet(pairs, mined, "l2", 0.2)
        expected = oracles.triplet(naive, "l2", 0.2, triplets)
    else:
        ours = losses.nca(pairs, mined, 0.1) if kind == "nca" else losses.angular(pairs, mined, 45.0)
        terms = {}
        for (a, p), chosen in by_pair.items():
            if kind == "nca":
                exponents = [(naive.s(a, n) - naive.s(a, p)) / 0.1 for n in chosen]
            else:
                exponents = [4 * (naive.s(a, n) + naive.s(p, n)) - 4 * naive.s(a, p) for n in chosen]
            terms.setdefault(a, []).append((1 + sum(e.exp() for e in exponents)).log())
        expected = torch.stack(
            [sum(terms[a]) / len(terms[a]) if a in terms else oracles.zero() for a in range(9)]
        )
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["triplet", "nca", "angular"])
def test_losses_learn_beside_the_boundary(kind):
    """The loss over P × N of the top-k boundary, re-derived from the misplaced images."""
    embeddings, labels = batch(11, count=12, classes=3)
    naive = oracles.Batch(embeddings, labels)
    strategy = mining.boundary(k=3, margin=0.1)
    build = {"triplet": losses.Triplet, "nca": losses.NCA, "angular": losses.Angular}[kind]
    ours = build(mining=strategy, reduction="none")(embeddings, labels)
    expected, seen = [], 0
    for q in range(12):
        scores = [naive.s(q, c).item() for c in range(12)]
        y = [None if c == q else int(labels[c] == labels[q]) for c in range(12)]
        misplaced, intruders = oracles.topk_sets(scores, y, 3, 0.1)
        seen += len(misplaced)
        terms = []
        for p in misplaced:
            if kind == "triplet":
                terms += [oracles.hinge(naive.s(q, n) - naive.s(q, p) + 0.1) for n in intruders]
            elif kind == "nca":
                exponents = [(naive.s(q, n) - naive.s(q, p)) / 0.1 for n in intruders]
                terms.append((1 + sum(e.exp() for e in exponents)).log())
            else:
                exponents = [4 * (naive.s(q, n) + naive.s(p, n)) - 4 * naive.s(q, p) for n in intruders]
                terms.append((1 + sum(e.exp() for e in exponents)).log())
        expected.append(sum(terms) / len(terms) if terms else oracles.zero())
    assert seen > 0
    torch.testing.assert_close(ours, torch.stack(expected), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(
        *(torch.autograd.grad(terms.sum(), embeddings)[0] for terms in (ours, torch.stack(expected)))
    )


def test_margin_draws_are_reproducible_and_equal_the_oracle():
    embeddings, labels = batch(12, count=12, dim=16)
    draw = mining.product("all", "distance_weighted")
    a, p, n = draw(Pairs.of(embeddings, labels), torch.Generator().manual_seed(6)).triplets()
    drawn = {(int(i), int(j)): int(k) for i, j, k in zip(a, p, n, strict=True)}
    loss = losses.Margin(reduction="none", generator=torch.Generator().manual_seed(6)).double()
    expected = oracles.margin(oracles.Batch(embeddings, labels), 0.2, [1.2] * 12, 0.0, drawn)
    torch.testing.assert_close(loss(embeddings, labels), expected, rtol=1e-6, atol=1e-6)
    assert not torch.equal(loss(embeddings, labels), expected)  # the generator went on: other draws


def test_margin_learns_its_three_boundaries():
    embeddings, labels = batch(13, count=8)
    ids = torch.tensor([9, 3, 5, 0, 1, 7, 2, 8])
    loss = losses.Margin(classes=CLASSES, images=10, nu=0.1, negatives="hard").double()
    beta, of_class, of_image = (parameter.detach().clone() for parameter in loss.parameters())
    parts = [part.requires_grad_() for part in (beta, of_class, of_image)]
    drawn = dict(zip(*_triplets_by_pair(embeddings, labels, "hard"), strict=True))
    each = [beta + of_class[labels[q]] + of_image[ids[q]] for q in range(8)]
    expected = oracles.margin(oracles.Batch(embeddings, labels), 0.2, each, 0.1, drawn).mean()
    value = loss(embeddings, labels, image_ids=ids)
    torch.testing.assert_close(value, expected)
    value.backward()
    for parameter, gradient in zip(loss.parameters(), torch.autograd.grad(expected, parts), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def _triplets_by_pair(embeddings, labels, negatives):
    a, p, n = mining.mine(Pairs.of(embeddings, labels), "all", negatives).triplets()
    return list(zip(a.tolist(), p.tolist(), strict=True)), n.tolist()


def test_a_fixed_boundary_is_not_learned():
    embeddings, labels = batch(13, count=8)
    loss = losses.Margin(classes=CLASSES, learn_beta=False).double()
    loss(embeddings, labels).backward()
    assert loss.beta.grad is None
    assert loss.beta_class.grad.abs().sum() > 0


def test_proxies_receive_the_gradient_of_the_oracle():
    embeddings, labels = batch(17, count=8)
    loss = losses.ProxyNCA(classes=CLASSES, dim=DIM).double()
    proxies = loss.proxies.detach().clone().requires_grad_()
    loss(embeddings, labels).backward()
    expected = oracles.proxy_nca(oracles.Batch(embeddings, labels), proxies, 3.0).mean()
    torch.testing.assert_close(loss.proxies.grad, torch.autograd.grad(expected, proxies)[0])


def test_spectral_clustering_is_right_where_classes_have_collapsed():
    """Its optimum: a point a class. In float32 the gram matrix has no Cholesky factor there."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(3, 64, generator=generator)
    labels = torch.arange(600) % 3
    exact = (centers[labels] + 1e-6 * torch.randn(600, 64, generator=generator)).double().requires_grad_()
    rounded = exact.detach().float().requires_grad_()
    terms = [losses.SpectralClustering(ridge=1e-6)(points, labels) for points in (exact, rounded)]
    assert terms[1].item() == pytest.approx(terms[0].item(), abs=1e-3)
    terms[1].backward()
    assert rounded.grad.abs().max() < 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_may_be_small_integers(dtype):
    embeddings, labels = batch(18, count=8)
    ids = torch.arange(8)
    loss = losses.Margin(classes=CLASSES, images=8, negatives="hard").double()
    torch.testing.assert_close(
        loss(embeddings, labels.to(dtype), image_ids=ids.to(dtype)), loss(embeddings, labels, image_ids=ids)
    )


@pytest.mark.parametrize("function", [losses.npair, losses.histogram, losses.spectral_clustering])
def test_functions_over_pairs_keep_out_of_autocast(function):
    embeddings, labels = batch(19, count=12, dim=8, dtype=torch.float32)
    pairs = Pairs.of(embeddings, labels)
    plain = function(pairs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(function(pairs), plain, rtol=1e-6, atol=1e-6)


def test_huge_and_tiny_embeddings_have_the_same_similarities():
    embeddings, labels = batch(20, dtype=torch.float32)
    plain = Pairs.of(embeddings, labels).similarity
    for scale in (1e-30, 1e30):
        torch.testing.assert_close(Pairs.of(scale * embeddings, labels).similarity, plain)


def test_a_loss_prints_its_settings():
    assert "k=3, margin=0.2" in repr(losses.TopKPrecision(k=3, margin=0.2))


def test_a_larger_nu_makes_a_smaller_boundary():
    embeddings, labels = batch(14, count=12)
    slopes = []
    for nu in (0.0, 0.5):
        loss = losses.Margin(nu=nu, negatives="hard").double()
        loss(embeddings, labels).backward()
        slopes.append(loss.beta.grad.item())
    assert slopes[1] > slopes[0]


def test_easy_hard_and_batch_all_coincide_with_two_images_a_class():
    embeddings, _ = batch(15, count=12)
    labels = torch.arange(12) // 2
    values = [losses.create(name, reduction="none")(embeddings, labels) for name in ("ep", "hp", "batch-all")]
    torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=0)
    torch.testing.assert_close(values[0], values[2], rtol=1e-12, atol=0)


def test_copies_are_not_positives():
    points = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 0, 1])
    seen = losses.NCA(positives="easy", negatives="all", reduction="none")(points, labels)
    alone = losses.NCA(positives="easy", negatives="all", reduction="none")(points[1:], labels[1:])
    torch.testing.assert_close(seen[1], alone[0])


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_topk_by_log_distance_is_the_same_equation_on_another_score(k):
    x, y = (
        torch.randn(15, 4, dtype=torch.float64),
        torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4]),
    )
    vectors = torch.nn.functional.normalize(x).numpy()
    scores = -np.log(np.linalg.norm(vectors[:, None] - vectors[None], axis=2) + np.eye(15))
    expected = []
    for query in range(15):
        others = [other for other in range(15) if other != query]
        positives = sorted((scores[query, other] for other in others if y[other] == y[query]), reverse=True)
        negatives = sorted(
            (scores[query, other] + 0.3 for other in others if y[other] != y[query]), reverse=True
        )
        m = min(k, len(positives))
        page = sorted([*positives, *negatives], reverse=True)[:k]
        expected.append(sum(page) - sum(positives[:m]) - sum(negatives[: k - m]) if positives else 0.0)
    loss = losses.TopKPrecision(k, 0.3, reduction="none", score="log")
    np.testing.assert_allclose(loss(x, y), expected, atol=1e-9)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_topk_by_log_distance_does_not_contract_the_embeddings_and_by_cosine_it_does(k):
    generator = torch.Generator().manual_seed(0)
    apart = torch.nn.functional.normalize(torch.randn(32, 8, generator=generator, dtype=torch.float64))
    common = torch.full((32, 1), 0.8, dtype=torch.float64)  # all have the same share of the common mean
    labels, toward = torch.arange(32) // 4, {}
    for score in ("cosine", "log"):
        x = torch.cat([common, 0.6 * apart], dim=1).requires_grad_()
        losses.TopKPrecision(k, 0.1, score=score)(x, labels).backward()
        toward[score] = -x.grad[:, 0].sum().item()
    assert toward["cosine"] > 0.05
    assert abs(toward["log"]) < 1e-12


def test_topk_by_log_distance_is_finite_for_copies():
    x = torch.ones(6, 3).requires_grad_()
    loss = losses.TopKPrecision(2, 0.3, score="log")(x, torch.tensor([0, 0, 1, 1, 2, 2]))
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()
    with pytest.raises(ValueError, match=r"score='dot'\): must be cosine or log"):
        losses.TopKPrecision(score="dot")


def test_topk_decorrelation_adds_the_covariance_term():
    embeddings, labels = batch(16)
    vectors = torch.nn.functional.normalize(embeddings.detach(), dim=1)
    covariance = torch.cov(vectors.T, correction=0)
    expected = 0.1 * (covariance - torch.eye(DIM, dtype=torch.float64)).norm()
    plain, extra = (losses.TopKPrecision(decorrelation=w)(embeddings, labels) for w in (0.0, 0.1))
    torch.testing.assert_close(extra - plain, expected)


@pytest.mark.parametrize("seed", range(8))
def test_structured_clustering_finds_facilities_no_swap_improves(seed):
    embeddings, labels = batch(seed, count=9, classes=3)
    naive = oracles.Batch(embeddings, labels)
    pairs = Pairs.of(embeddings.detach(), labels)
    assigned = torch.ops.firstpage.facilities(pairs.distance, labels, labels, 1.0, 20)[0]
    chosen = tuple(assigned.unique().tolist())
    ours = losses.StructuredClustering(reduction="none", refinements=20)(embeddings, labels)
    given = oracles.struct_clust_given(naive, 1.0, chosen)
    # A class of two has two medoids, equally good: the terms may differ, their sum may not.
    torch.testing.assert_close(ours.sum(), given.sum(), rtol=1e-7, atol=1e-9)
    if ours.sum() > 0:
        torch.testing.assert_close(
            *(torch.autograd.grad(terms.sum(), embeddings)[0] for terms in (ours, given)),
            rtol=1e-6,
            atol=1e-8,
        )
    assert ours.sum() <= oracles.struct_clust(naive, 1.0).sum() + 1e-9  # brute force over all sets
    for out in chosen:
        for other in set(range(9)) - set(chosen):
            swapped = tuple(sorted((set(chosen) - {out}) | {other}))
            assert oracles.struct_clust_given(naive, 1.0, swapped).sum() <= ours.sum() + 1e-5


def test_structured_clustering_against_other_candidates():
    queries, labels = batch(21, count=7, classes=3)
    candidates, candidate_labels = batch(22, count=8, classes=3)
    keep = torch.isin(labels, candidate_labels)
    ours = losses.StructuredClustering(reduction="none")(queries, labels, candidates, candidate_labels)
    exact = oracles.struct_clust(
        oracles.Batch(queries[keep], labels[keep], candidates, candidate_labels), 1.0
    ).sum()
    assert (ours[~keep] == 0).all()
    assert 0.8 * exact - 1e-9 <= ours.sum() <= exact + 1e-9


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: losses.TopKPrecision(k=0), r"TopKPrecision\(k=0\): k must be at least 1"),
        (lambda: losses.TopKPrecision(k=2.5), "k=2.5"),
        (lambda: losses.TopKPrecision(margin=-1), "margin"),
        (lambda: losses.TopKPrecision(margin=float("inf")), "margin=inf"),
        (lambda: losses.TopKPrecision(decorrelation=-1), "decorrelation"),
        (lambda: losses.Triplet(form="cube"), "form='cube'"),
        (lambda: losses.Triplet(margin=-0.1), "margin"),
        (lambda: losses.Triplet(negatives="hardest"), "negatives='hardest': choose one of all, hard"),
        (lambda: losses.NCA(temperature=0), "temperature"),
        (lambda: losses.NCA(reduction="max"), "reduction='max'"),
        (lambda: losses.RankedList(alpha=3), r"RankedList\(alpha=3"),
        (lambda: losses.RankedList(margin=2), "margin=2"),
        (lambda: losses.RankedList(temperature=-1), "temperature"),
        (lambda: losses.LiftedStructure(alpha=-1), "alpha"),
        (lambda: losses.Contrastive(margin=0), "margin=0"),
        (lambda: losses.Margin(classes=0), "classes=0"),
        (lambda: losses.Margin(alpha=-1), "alpha"),
        (lambda: losses.Margin(beta=float("nan")), "beta=nan"),
        (lambda: losses.Margin(nu=-1), "nu=-1"),
        (lambda: losses.NCA(copies=-3), "copies=-3"),
        (lambda: losses.NCA(mining="boundary"), "mining='boundary': give a strategy"),
        (lambda: losses.NCA(positives=None), "positives=None"),
        (lambda: losses.BinomialDeviance(beta=2), "beta=2"),
        (lambda: losses.Combined([torch.nn.Linear(1, 1)]), "got Linear"),
        (lambda: losses.create(None), "no such name"),
        (lambda: losses.NPair(l2=-1), "l2"),
        (lambda: losses.Angular(degrees=90), "degrees=90"),
        (lambda: losses.ProxyNCA(0, 8), "classes=0"),
        (lambda: losses.ProxyNCA(2, 8, scale=0), "scale"),
        (lambda: losses.ProxyAnchor(0, 8), r"ProxyAnchor\(classes=0"),
        (lambda: losses.ProxyAnchor(2, 8, alpha=0), "alpha=0"),
        (lambda: losses.ProxyAnchor(2, 8, delta=-1), "delta=-1"),
        (lambda: losses.SoftTriple(2, 8, per_class=0), "per_class=0"),
        (lambda: losses.SoftTriple(2, 8, gamma=0), "gamma=0"),
        (lambda: losses.SoftTriple(2, 8, scale=float("inf")), "scale=inf"),
        (lambda: losses.SoftTriple(2, 8, delta=2), "delta=2"),
        (lambda: losses.SoftTriple(2, 8, tau=-1), "tau=-1"),
        (lambda: losses.MultiSimilarity(beta=0), "beta=0"),
        (lambda: losses.MultiSimilarity(base=2), "base=2"),
        (lambda: losses.MultiSimilarity(epsilon=-1), "epsilon=-1"),
        (lambda: losses.MultiSimilarity(mining="all"), "mining='all': give a strategy"),
        (lambda: losses.RecallAtK(ks=()), r"ks=\(\)"),
        (lambda: losses.RecallAtK(ks=(0, 1)), r"ks=\(0, 1\)"),
        (lambda: losses.RecallAtK(temperature=0), "temperature=0"),
        (lambda: losses.RecallAtK(simix=-1), "simix=-1"),
        (lambda: losses.SmoothAP(temperature=float("nan")), "temperature=nan"),
        (lambda: losses.Roadmap(rho=-1), "rho=-1"),
        (lambda: losses.Roadmap(temperature=0), "temperature=0"),
        (lambda: losses.Roadmap(beta=2), "beta=2"),
        (lambda: losses.Circle(margin=-1), "margin=-1"),
        (lambda: losses.Circle(scale=0), "scale=0"),
        (lambda: losses.SupervisedContrastive(temperature=0), "temperature=0"),
        (lambda: losses.create("recall-at-k", ks=[1.5]), r"ks=1\.5: must be a whole number$"),
        (lambda: losses.Histogram(bins=1), "bins=1"),
        (lambda: losses.BinomialDeviance(alpha=0), "alpha=0"),
        (lambda: losses.SpectralClustering(ridge=0), "ridge"),
        (lambda: losses.StructuredClustering(gamma=-1), "gamma"),
        (lambda: losses.StructuredClustering(refinements=-1), "refinements"),
        (lambda: losses.Combined([]), "one weight per loss"),
        (lambda: losses.create("top-k"), "did you mean 'topk'"),
        (lambda: losses.create("topk", gama=1), "no setting 'gama'"),
        (lambda: losses.create("proxy-nca"), "needs classes, dim"),
        (lambda: losses.create("topk", margin="abc"), "loss 'topk': margin='abc': must be a number$"),
        (lambda: losses.create("topk", margin=True), "margin=True: must be a number$"),
        (lambda: losses.create("topk", margin=None), "margin=None: must be a number$"),
        (lambda: losses.create("topk", k=1.5), "k=1.5: must be a whole number$"),
        (lambda: losses.create("topk", k=0), r"TopKPrecision\(k=0\): k must be at least 1$"),
        (lambda: losses.TopKPrecision(k=1.5), "k must be a whole number, or several$"),
        (lambda: losses.TopKPrecision(k=()), "k must be a whole number, or several$"),
        (lambda: losses.TopKPrecision(k=(1, 0)), "k must be at least 1$"),
        (lambda: losses.create("margin", learn_beta=1), "learn_beta=1: must be true or false$"),
        (lambda: losses.create("margin", classes=True), "classes=True: must be a whole number$"),
        (lambda: losses.create("triplet-hard", margin="x"), "margin='x': must be a number$"),
        (lambda: losses.create("triplet-hard", form=["l2"]), r"form=\['l2'\]: choose one of"),
        (lambda: losses.create("epshn", positives=["easy"]), r"positives=\['easy'\]: choose one of"),
    ],
)
def test_wrong_settings_are_named(call, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("value", ["abc", [1], {}, 1j])
def test_no_setting_of_any_loss_takes_what_it_is_not(name, value):
    required = sized(name, classes=2, dim=3)
    for key in inspect.signature(_ROWS[name][0]).parameters.keys() - {"generator"}:
        if key in ("k", "ks") and value == [1]:  # a list of k
            continue
        with pytest.raises(ValueError, match=f"{key}=") as caught:
            losses.create(name, **required | {key: value})
        assert "\n" not in str(caught.value)


def test_settings_may_be_of_numpy_or_none_where_none_means_something():
    assert losses.create("topk", k=np.int64(3), margin=np.float32(0.5)).k == 3
    assert losses.create("triplet-hard", margin=None).margin == losses.Triplet().margin
    assert losses.create("margin", classes=None, beta=1).beta_class is None
    assert callable(losses.create("epshn", mining=mining.boundary(k=2), generator=torch.Generator()).mining)


def test_labels_that_do_not_fit_beta_or_proxies_are_named():
    points, labels = torch.randn(4, 3), torch.tensor([0, 0, 5, 5])
    with pytest.raises(ValueError, match=r"labels run from 0 to 5: Margin\(classes=3\)"):
        losses.Margin(classes=3)(points, labels)
    with pytest.raises(ValueError, match=r"labels run from 0 to 5: ProxyNCA\(classes=3\)"):
        losses.ProxyNCA(classes=3, dim=3)(points, labels)
    with pytest.raises(ValueError, match="pass image_ids"):
        losses.Margin(images=4)(points, labels)
    with pytest.raises(ValueError, match="needs dim=3"):
        losses.ProxyNCA(classes=6, dim=4)(points, labels)
    with pytest.raises(ValueError, match=r"labels run from 0 to 5: SoftTriple\(classes=3\)"):
        losses.SoftTriple(classes=3, dim=3)(points, labels)
    with pytest.raises(ValueError, match=r"ProxyAnchor\(dim=4\) needs dim=3"):
        losses.ProxyAnchor(classes=6, dim=4)(points, labels)


def test_a_sum_has_the_weighted_terms_of_its_parts():
    embeddings, labels = batch(5)
    parts = [{"name": "topk", "weight": 10.0, "k": 1, "margin": 0.05}, {"name": "supcon"}]
    loss = losses.create("sum", parts=parts, reduction="none")
    expected = 10 * losses.TopKPrecision(1, 0.05, reduction="none")(embeddings, labels)
    expected += losses.create("supcon", reduction="none")(embeddings, labels)
    torch.testing.assert_close(loss(embeddings, labels), expected)
    assert loss.names == ["topk", "supcon"]
    torch.manual_seed(3)
    own = losses.create("first-page", classes=CLASSES, dim=DIM).double()
    anchor = losses.ProxyAnchor(CLASSES, DIM).double()
    anchor.load_state_dict({"proxies": own.parts[1].proxies})
    both = 10 * losses.TopKPrecision(1, 0.1, score="log")(embeddings, labels) + anchor(embeddings, labels)
    torch.testing.assert_close(own(embeddings, labels), both)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ([{"weight": 2.0}], r"loss.parts\[0\]: name its loss"),
        ([{"name": "topk"}, {"name": "topkk"}], "did you mean 'topk'"),
        ([{"name": "topk", "weight": "much"}], r"loss.parts\[0\].weight='much': must be a number"),
        ([{"name": "topk", "kk": 1}], "no setting 'kk'"),
        ([], "give one weight per loss"),
    ],
    ids=["nameless", "misspelled", "weight", "setting", "empty"],
)
def test_what_is_wrong_with_a_sum_is_named(parts, complaint):
    with pytest.raises(ValueError, match=complaint):
        losses.create("sum", parts=parts)


def test_every_row_of_the_tables_has_its_name():
    assert set(EVERY) == {
        "first-page",
        *("topk", "margin", "triplet-uniform", "triplet-hard", "triplet-semihard", "triplet-distance"),
        *("contrastive", "ep", "ephn", "epshn", "hp", "hphn", "batch-all", "rll", "lifted", "npair"),
        *("angular", "npair-angular", "proxy-nca", "histogram", "binomial", "struct-clust", "spectral-clust"),
        *("proxy-anchor", "multi-similarity", "soft-triple", "recall-at-k", "smooth-ap", "roadmap", "circle"),
        *("supcon", "htl", "pddm"),
    }


@pytest.mark.parametrize("name", EVERY)
def test_every_loss_brings_classes_together(name):
    """A few steps of plain gradient descent raise the share of queries whose nearest image is a positive."""
    torch.manual_seed(7)
    labels = torch.arange(48) // 6
    features = torch.randn(8, 32)[labels] + 2.2 * torch.randn(48, 32)
    network = torch.nn.Linear(32, 8)
    loss = create(name)
    optimizer = torch.optim.Adam([*network.parameters(), *loss.parameters()], lr=0.01)

    def precision():
        similarity = Pairs.of(network(features), labels).similarity.detach().fill_diagonal_(-2)
        return (labels[similarity.argmax(dim=1)] == labels).float().mean().item()

    before = precision()
    for _ in range(40):
        optimizer.zero_grad()
        loss(network(features), labels).backward()
        optimizer.step()
    assert precision() >= before + 0.2


def test_thousands_of_negatives_that_hardly_violate_lose_no_digits():
    similarity = 0.7 + 1e-7 * torch.rand(1, 16_384, generator=torch.Generator().manual_seed(0))
    positive = torch.tensor([[0.7]])
    pairs = Pairs(
        torch.zeros(1, 2),
        torch.zeros(1, dtype=torch.long),
        torch.zeros(16_385, 2),
        torch.arange(16_385).clamp(max=1),
        torch.cat([positive, similarity], dim=1),
        torch.arange(16_385)[None] == 0,
        torch.arange(16_385)[None] > 0,
    )
    loss = losses.Triplet(margin=0.0, positives="all", negatives="all").of(pairs)
    torch.testing.assert_close(loss.double(), (similarity.double() - positive.double()).relu().mean())
