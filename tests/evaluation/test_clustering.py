"""Clusters and their agreement with the classes, against pair counting, scikit-learn and itself."""

import itertools
import sys

import hypothesis
import hypothesis.strategies as st
import pytest
import sklearn.cluster
import sklearn.metrics
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from firstpage.evaluation import agreement, cluster, clustering

partitions = st.integers(1, 30).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(-3, 5), min_size=n, max_size=n)] * 2)
)


def check(first, second):
    found = agreement(torch.tensor(first), torch.tensor(second))
    metrics = sklearn.metrics
    for name, average in (("NMI", "geometric"), ("NMI arithmetic", "arithmetic")):
        expected = metrics.normalized_mutual_info_score(second, first, average_method=average)
        assert found[name] == pytest.approx(100 * expected, abs=1e-6)
    assert found["AMI"] == pytest.approx(100 * metrics.adjusted_mutual_info_score(second, first), abs=1e-6)


@hypothesis.given(partitions)
def test_scikit_learn_agrees(both):
    check(*both)


def test_scikit_learn_agrees_on_many_classes(monkeypatch):
    monkeypatch.setattr("firstpage.evaluation.partitions._CELLS", 50)  # the terms come in several chunks
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(150, (1500,), generator=generator)
    moved = torch.where(torch.rand(1500, generator=generator) < 0.5, labels, labels * 7 % 40)
    check(moved.tolist(), labels.tolist())


@hypothesis.given(partitions)
def test_f1_counts_pairs(both):
    first, second = both
    pairs = list(itertools.combinations(range(len(first)), 2))
    one = {(i, j) for i, j in pairs if first[i] == first[j]}
    other = {(i, j) for i, j in pairs if second[i] == second[j]}
    expected = 2 * len(one & other) / (len(one) + len(other)) if one or other else 1
    assert agreement(torch.tensor(first), torch.tensor(second))["F1"] == pytest.approx(100 * expected)


def blobs(classes, each, noise, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat(each)
    centers = torch.nn.functional.normalize(torch.randn(classes, 12, generator=generator), dim=1)
    return centers[labels] + noise * torch.randn(len(labels), 12, generator=generator), labels


def test_far_apart_classes_are_found_whatever_their_length_and_number():
    points, labels = blobs(200, 6, 0.001)  # more clusters than rounds of drawing
    found = cluster(points * torch.logspace(-3, 3, len(points))[:, None], labels - 7)
    assert found.nmi > 98
    assert found.clusters == 200
    assert found.engine == "torch"
    assert len(found.assignment) == len(labels)


def test_k_means_is_as_tight_as_scikit_learns():
    points, labels = blobs(12, 25, 0.3)
    points = torch.nn.functional.normalize(points, dim=1)
    ours = cluster(points, labels, tries=5).assignment
    theirs = sklearn.cluster.KMeans(12, n_init=5, random_state=0).fit(points.numpy())

    def spread(assignment):
        return sum(
            (points[assignment == c] - points[assignment == c].mean(0)).square().sum().item()
            for c in assignment.unique()
        )

    assert spread(ours) == pytest.approx(spread(torch.from_numpy(theirs.labels_)), rel=0.03)


def test_an_image_lies_with_the_nearest_mean():
    points, labels = blobs(6, 20, 0.2)
    points = torch.nn.functional.normalize(points, dim=1)
    assignment = cluster(points, labels).assignment
    means = torch.stack([points[assignment == c].mean(0) for c in range(6)])
    assert torch.equal(torch.cdist(points, means).argmin(1), assignment)


def test_the_seed_decides_and_tries_do_not_hurt():
    points, labels = blobs(10, 10, 0.8)
    one, again, other = (cluster(points, labels, seed=s).assignment for s in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_blocks_do_not_matter(monkeypatch):
    points, labels = blobs(10, 10, 0.3)
    whole = cluster(points, labels).assignment
    monkeypatch.setattr(clustering, "_BLOCK", 70)
    assert torch.equal(cluster(points, labels).assignment, whole)


def test_empty_clusters_begin_anew():
    """Two centers at one point: one of them gets nothing, and takes the point that fits worst."""
    points = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    centers = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assignment, spread = clustering._lloyd(points, centers, 10)
    assert sorted(assignment.bincount(minlength=3).tolist()) == [1, 1, 2]
    assert spread == 0


def test_fewer_places_than_clusters():
    points = torch.eye(2).repeat(4, 1)
    found = cluster(points, torch.arange(2).repeat(4), clusters=5)
    assert len(found.assignment.unique()) == 2
    assert found.nmi == pytest.approx(100)


def test_pytorch_metric_learning_agrees():
    points, labels = blobs(8, 15, 0.5)
    found = cluster(points, labels)
    theirs = AccuracyCalculator(
        include=("NMI", "AMI"),
        kmeans_func=lambda *_: found.assignment,
        knn_func=lambda *_: None,
        device=torch.device("cpu"),
    ).get_accuracy(points, labels)
    assert found.nmi_arithmetic == pytest.approx(100 * theirs["NMI"])
    assert found.ami == pytest.approx(100 * theirs["AMI"])


def test_faiss_is_asked_when_it_is_chosen(monkeypatch):
    """Against a stand-in: what is asked of FAISS, and that its answer is what is measured."""
    points, labels = blobs(3, 4, 0.01)

    class Kmeans:
        def __init__(self, dim, clusters, **options):
            assert (dim, clusters) == (12, 3)
            assert options["seed"] == 5
            assert options["max_points_per_centroid"] >= 12

        def train(self, table):
            assert table.shape == (12, 12)
            self.index = self

        def search(self, table, k):
            return None, labels.numpy()[:, None]

    stand_in = type(sys)("faiss")
    stand_in.Kmeans = Kmeans
    stand_in.__spec__ = type(sys.__spec__)("faiss", None)
    monkeypatch.setitem(sys.modules, "faiss", stand_in)
    found = cluster(points, labels, seed=5, engine="faiss")
    assert found.engine == "faiss"
    assert found.nmi == pytest.approx(100)


@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        ((torch.eye(3), torch.zeros(3).long()), {}, "labels: all 3 are of one class"),
        ((torch.eye(3), torch.arange(3)), {"clusters": 4}, "clusters=4"),
        ((torch.eye(3), torch.arange(3)), {"clusters": 0}, "clusters=0"),
        ((torch.eye(3), torch.arange(3)), {"tries": 0}, "tries=0"),
        ((torch.eye(3), torch.arange(3)), {"engine": "none"}, "engine='none'"),
        ((torch.eye(3) / 0, torch.arange(3)), {}, "embeddings: row 0 holds NaN"),
        ((torch.zeros(3, 2), torch.arange(3)), {}, "embeddings: row 0 is zero"),
        ((torch.empty(0, 2), torch.empty(0).long()), {}, "embeddings: got shape"),
    ],
)
def test_wrong_input_is_named(arguments, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        cluster(*arguments, **options)


def test_faiss_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ValueError, match="pip install faiss-cpu"):
        cluster(torch.eye(3), torch.arange(3), engine="faiss")


def test_arrays_are_clustered_as_tensors_are():
    points, labels = torch.randn(20, 4), torch.arange(20) % 3
    found = cluster(points.numpy(), labels.numpy())
    assert found.metrics() == cluster(points, labels).metrics()
    assert agreement(found.assignment.numpy(), labels.tolist()) == found.metrics()
    with pytest.raises(ValueError, match="assignment: got str"):
        agreement("ab", labels)


def test_agreement_of_different_shapes_is_named():
    with pytest.raises(ValueError, match="assignment: got shape"):
        agreement(torch.arange(2), torch.arange(3))
