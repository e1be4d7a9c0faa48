"""pytorch-metric-learning: the same numbers where it has the same formula, and each known difference named.

`pairs_tuple` and `triplets` are firstpage's mined indices handed over, so that both look at the same images.
"""

import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers
from pytorch_metric_learning import losses as pml

from firstpage import Pairs, losses, mining
from support.batches import batch


@pytest.fixture
def data():
    embeddings, _ = batch(0, count=12, dim=8, dtype=torch.float32)
    return embeddings.detach(), torch.arange(12) // 3  # equal classes: a mean of means is the mean


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "distance"),
    [
        ("cosine", distances.CosineSimilarity()),
        ("l2", distances.LpDistance(power=1)),
        ("l2_squared", distances.LpDistance(power=2)),
    ],
)
def test_triplet(data, form, distance):
    ours = losses.Triplet(form=form, margin=0.2, positives="all", negatives="all")
    theirs = pml.TripletMarginLoss(margin=0.2, distance=distance, reducer=reducers.MeanReducer())
    close(ours(*data), theirs(*data))


def test_triplet_difference_they_average_the_violated_ones_by_default(data):
    triplets = mining.mine(Pairs.of(*data)).triplets()
    default = pml.TripletMarginLoss(margin=0.2, distance=distances.CosineSimilarity())(*data, triplets)
    ours = losses.Triplet(margin=0.2, positives="all", negatives="all")(*data)
    similarity = Pairs.of(*data).similarity
    a, p, n = triplets
    violated = (similarity[a, n] - similarity[a, p] + 0.2 > 0).sum()
    close(ours * len(a), default * violated)


def test_margin(data):
    a, p, n = mining.mine(Pairs.of(*data), "all", "hard").triplets()
    theirs = pml.MarginLoss(margin=0.2, nu=0, beta=1.2)(*data, (a, p, n))
    distance = Pairs.of(*data).distance
    cost = torch.cat([(0.2 + distance[a, p] - 1.2).relu(), (0.2 - distance[a, n] + 1.2).relu()])
    close(theirs, cost.sum() / (cost > 0).sum())
    close(losses.Margin(negatives="hard")(*data), theirs)
    generator = torch.Generator().manual_seed(0)
    drawn = mining.mine(Pairs.of(*data), "all", "uniform", generator=generator).triplets()
    ours = losses.Margin(negatives="uniform", generator=torch.Generator().manual_seed(0))(*data)
    close(ours, pml.MarginLoss(margin=0.2, nu=0, beta=1.2)(*data, drawn))


def test_batch_all_is_their_ntxent(data):
    ours = losses.NCA(temperature=0.1, positives="all", negatives="all")
    close(ours(*data), pml.NTXentLoss(temperature=0.1)(*data))


def test_contrastive_difference_they_do_not_square(data):
    theirs = pml.ContrastiveLoss(pos_margin=0, neg_margin=1)(*data)
    pairs = Pairs.of(*data)
    positive, negative = pairs.distance[pairs.positive], (1 - pairs.distance[pairs.negative]).relu()

    def active_mean(values):
        return values.sum() / (values > 0).sum().clamp_min(1)

    close(theirs, active_mean(positive) + active_mean(negative))
    close(losses.Contrastive()(*data), active_mean(positive.square()) + active_mean(negative.square()))


def test_lifted_structure(data):
    close(
        losses.LiftedStructure(alpha=1.0)(*data), pml.LiftedStructureLoss(neg_margin=1, pos_margin=0)(*data)
    )


def test_angular(data):
    embeddings, labels = data
    unit = torch.nn.functional.normalize(embeddings, dim=1)
    close(losses.Angular(degrees=45)(unit, labels), pml.AngularLoss(alpha=45)(unit, labels))


def test_angular_difference_they_leave_the_negatives_long(data):
    """Theirs changes with the length of the embeddings, although it normalizes anchors and positives."""
    embeddings, labels = data
    ours, theirs = losses.Angular(degrees=45), pml.AngularLoss(alpha=45)
    close(ours(3 * embeddings, labels), ours(embeddings, labels))
    assert theirs(3 * embeddings, labels) > 1.5 * theirs(embeddings, labels)


def test_npair_with_one_pair_a_class():
    embeddings, _ = batch(1, count=8, dim=8, dtype=torch.float32)
    anchors, positives = embeddings.detach()[:4], embeddings.detach()[4:]
    labels = torch.arange(4)
    ours = losses.NPair(l2=0.0)(torch.cat([anchors, positives]), labels.repeat(2))
    # their formula with the pairs fixed: cross-entropy of the raw products
    theirs = torch.nn.functional.cross_entropy(anchors @ positives.T, labels)
    close(ours, theirs)


def test_npair_difference_they_draw_the_anchors_and_normalize(data):
    embeddings, _ = data
    labels = torch.arange(12) // 2  # one pair a class, either image of which may be their anchor
    raw = distances.DotProductSimilarity(normalize_embeddings=False)
    possible = []
    for flips in range(2**6):
        anchors = torch.tensor([2 * c + (flips >> c & 1) for c in range(6)])
        order = torch.stack([anchors, anchors ^ 1], dim=1).flatten()
        possible.append(losses.NPair(l2=0.0)(embeddings[order], labels[order]))
    theirs = pml.NPairsLoss(distance=raw)(embeddings, labels)
    assert torch.stack(possible).sub(theirs).abs().min() < 1e-4
    unit = torch.nn.functional.normalize(embeddings, dim=1)
    torch.manual_seed(0)
    default = pml.NPairsLoss()(embeddings, labels)
    torch.manual_seed(0)
    close(default, pml.NPairsLoss(distance=raw)(unit, labels))


def test_proxy_nca_difference_their_denominator_holds_the_own_class(data):
    theirs = pml.ProxyNCALoss(num_classes=4, embedding_size=8, softmax_scale=9)
    ours = losses.ProxyNCA(classes=4, dim=8, scale=3, reduction="none")
    with torch.no_grad():
        ours.proxies.copy_(theirs.proxies)
    # −log(e^-own / (e^-own + Σ others)) = log(1 + e^(own + log Σ others))
    close(torch.nn.functional.softplus(ours(*data)).mean(), theirs(*data))


def test_histogram(data):
    ours = losses.Histogram(bins=51)(*data)
    close(ours, pml.HistogramLoss(n_bins=50)(*data))


def test_ranked_list_difference_they_let_the_candidates_move_and_halve(data):
    embeddings, labels = data
    theirs = pml.RankedListLoss(margin=0.4, Tn=10, imbalance=0.5, alpha=1.2, Tp=0)
    first, second = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    ours = losses.RankedList(alpha=1.2, margin=0.4, temperature=10)(first, labels)
    other = theirs(second, labels)
    close(ours / 2, other)  # imbalance 0.5 halves both parts
    ours.backward()
    other.backward()
    assert not torch.allclose(first.grad / 2, second.grad, rtol=1e-2)


def test_proxy_anchor(data):
    theirs = pml.ProxyAnchorLoss(num_classes=6, embedding_size=8)  # two classes are in no batch
    ours = losses.ProxyAnchor(classes=6, dim=8)
    with torch.no_grad():
        ours.proxies.copy_(theirs.proxies)
    value, other = ours(*data), theirs(*data)
    close(value, other)
    value.backward()
    other.backward()
    close(ours.proxies.grad, theirs.proxies.grad)


def test_multi_similarity(data):
    chosen = miners.MultiSimilarityMiner(epsilon=0.1)(*data)
    close(losses.MultiSimilarity()(*data), pml.MultiSimilarityLoss()(*data, chosen))
    every = losses.MultiSimilarity(mining=mining.product("all", "all"))
    close(every(*data), pml.MultiSimilarityLoss()(*data))


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5])
def test_multi_similarity_miner(data, epsilon):
    theirs = miners.MultiSimilarityMiner(epsilon=epsilon)(*data)
    (a, p), (b, n) = mining.multi_similarity(epsilon)(Pairs.of(*data), None).pairs()
    for ours, other in (((a, p), theirs[:2]), ((b, n), theirs[2:])):
        assert torch.stack(ours, dim=1).tolist() == sorted(torch.stack(other, dim=1).tolist())


def test_soft_triple_difference_they_leave_out_the_distances_of_centers(data):
    theirs = pml.SoftTripleLoss(num_classes=4, embedding_size=8, centers_per_class=3)
    ours, plain = (losses.SoftTriple(classes=4, dim=8, per_class=3, tau=tau) for tau in (0.2, 0.0))
    with torch.no_grad():
        for loss in (ours, plain):
            loss.proxies.copy_(theirs.fc.T)
    close(plain(*data), theirs(*data))
    centers = torch.nn.functional.normalize(theirs.fc.T, dim=1).view(4, 3, 8)
    spread = sum(torch.pdist(of_class).sum() for of_class in centers) / (4 * 3 * 2)
    close(ours(*data), theirs(*data) + 0.2 * spread)


def test_circle(data):
    close(losses.Circle()(*data), pml.CircleLoss()(*data))


def test_supervised_contrastive(data):
    close(losses.SupervisedContrastive()(*data), pml.SupConLoss()(*data))


@pytest.mark.parametrize("name", ["circle", "supcon"])
def test_difference_they_average_the_queries_with_a_loss(data, name):
    """One image has a class of its own: its term is 0 in either, and counts here only."""
    embeddings, labels = data[0], torch.cat([data[1][:-3], torch.tensor([3, 3, 9])])
    theirs = {"circle": pml.CircleLoss(), "supcon": pml.SupConLoss()}[name](embeddings, labels)
    terms = losses.create(name, reduction="none")(embeddings, labels)
    close(terms.sum() / (terms > 0).sum(), theirs)
    close(losses.create(name)(embeddings, labels) * 12 / (terms > 0).sum(), theirs)


def test_smooth_ap_difference_the_query_is_their_best_positive():
    """A batch given as candidates, without ids, holds the query too: then the two agree."""
    embeddings, _ = batch(2, count=9, dim=8, dtype=torch.float32)
    embeddings, labels = embeddings.detach(), torch.arange(9) // 3
    theirs = pml.SmoothAPLoss(temperature=0.01)(embeddings, labels)
    ours = losses.SmoothAP(temperature=0.01)
    close(ours(embeddings, labels, embeddings.clone(), labels), theirs)
    assert ours(embeddings, labels) > theirs + 0.05


def test_smooth_ap_difference_they_take_the_number_of_classes_for_their_size(data):
    """Four classes of three images are cut into groups of four, so labels that do not matter would."""
    embeddings, labels = data
    theirs = pml.SmoothAPLoss(temperature=0.01)
    ours = losses.SmoothAP(temperature=0.01)(embeddings, labels, embeddings.clone(), labels)
    assert (ours - theirs(embeddings, labels)).abs() > 0.01


@pytest.mark.parametrize(
    ("positives", "negatives", "theirs"),
    [
        ("easy", "hard", miners.BatchEasyHardMiner(pos_strategy="easy", neg_strategy="hard")),
        ("easy", "semihard", miners.BatchEasyHardMiner(pos_strategy="easy", neg_strategy="semihard")),
        ("hard", "hard", miners.BatchHardMiner()),
        ("hard", "hard", miners.BatchEasyHardMiner(pos_strategy="hard", neg_strategy="hard")),
    ],
)
def test_miners(data, positives, negatives, theirs):
    ours = mining.mine(Pairs.of(*data), positives, negatives).triplets()
    anchor, positive, *anchor_again, negative = theirs(*data)
    assert all(torch.equal(anchor, a) for a in anchor_again)
    expected = torch.stack([anchor, positive, negative], dim=1)
    assert sorted(torch.stack(ours, dim=1).tolist()) == sorted(expected.tolist())


def test_distance_weighted_difference_their_weights_underflow():
    """Tight classes in 512 dimensions: whole rows of their weights are 0, and they draw no negative there."""
    embeddings, labels = batch(8, count=64, dim=512, classes=16, dtype=torch.float32, spread=0.3)
    embeddings = embeddings.detach()
    with torch.no_grad():
        embeddings[0] = embeddings[labels != labels[0]][0] + 0.02 * torch.randn(
            512
        )  # one close pair of classes
    theirs = miners.DistanceWeightedMiner(cutoff=0.5, nonzero_loss_cutoff=1.4)(embeddings, labels)
    pairs = Pairs.of(embeddings, labels)
    ours = mining.mine(pairs, "all", "distance_weighted").triplets()
    assert len(ours[0]) == int(pairs.positive.sum())
    assert len(theirs[0]) < len(ours[0])
