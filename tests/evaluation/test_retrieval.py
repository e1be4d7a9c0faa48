"""Retrieval metrics against loops, scikit-learn and pytorch-metric-learning."""

from itertools import accumulate

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import sklearn.metrics
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from firstpage.evaluation import evaluate, ranks
from firstpage.evaluation.intervals import bootstrap_intervals

KS = (1, 2, 5, 30)


def naive(similarity, labels, gallery_labels, alone, ties, results, excluded=lambda q, c: False):
    """Every figure of every query by its definition: the ranking as a list of hits."""
    rows, first = {}, {}
    for q, label in enumerate(labels.tolist()):
        others = [c for c in range(len(gallery_labels)) if not (alone and c == q) and not excluded(q, c)]
        right = {c: int(gallery_labels[c]) == label for c in others}
        late = right if ties == "pessimistic" else dict.fromkeys(others, False)
        scores = similarity[q].tolist()
        ordered = sorted(others, key=lambda c: (-scores[c], late[c], c))
        hits = [right[c] for c in ordered]
        counts = list(accumulate(hits))  # right results up to each rank
        relevant, wrong = sum(hits), len(hits) - sum(hits)
        if not relevant:
            continue
        row = {f"P@{k}": sum(hits[:k]) / k for k in KS} | {f"R@{k}": float(any(hits[:k])) for k in KS}
        at = [count / (r + 1) for r, count in enumerate(counts)]  # precision at each rank
        row["P@R"] = sum(hits[:relevant]) / relevant
        row["MAP@R"] = sum(at[r] for r in range(relevant) if hits[r]) / relevant
        row["mAP"] = sum(at[r] for r in range(len(hits)) if hits[r]) / relevant
        row["MRR"] = 1 / (hits.index(True) + 1)
        in_order = sum(hit and not other for r, hit in enumerate(hits) for other in hits[r:])
        row["AUC"] = in_order / relevant / wrong if wrong else 1
        rows[q] = {name: 100 * value for name, value in row.items()}
        first[q] = ordered[:results]
        rows[q]["precision"] = [
            max(at[r] for r in range(len(hits)) if counts[r] >= level * relevant / 100)
            for level in range(101)
        ]
        rows[q]["hits"] = hits
    return rows, first


def corners(generator, count):
    """Corners of a cube, of length 2: their cosines are exact in any order of addition, and often equal."""
    return torch.randint(2, (count, 4), generator=generator) * 2.0 - 1


@st.composite
def searches(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    count, others, classes = draw(st.integers(2, 14)), draw(st.integers(2, 80)), draw(st.integers(2, 6))
    make = (
        corners if draw(st.booleans()) else lambda g, n: torch.randn(n, 6, generator=g, dtype=torch.float64)
    )
    query = make(generator, count), torch.randint(-1, classes - 1, (count,), generator=generator)
    if draw(st.booleans()):
        return query, None
    return query, (make(generator, others), torch.randint(-1, classes - 1, (others,), generator=generator))


def set_way(patch, way):
    """Small steps, and ranks by comparing or by sorting, with NumPy or as on a GPU."""
    many = 0 if way.startswith("sort") else 1000
    for name in ("_CPU", "_GPU"):
        patch.setattr(ranks, name, ranks.Sizes(step=200, sorted=120, piece=90, chunk=64, sort_above=many))
    if way.endswith("GPU"):
        patch.setattr(ranks, "_on_cpu", lambda tensor: False)


@pytest.mark.parametrize("way", ["compare", "sort", "compare as a GPU", "sort as a GPU"])
@pytest.mark.parametrize("ties", ["index", "pessimistic"])
@hypothesis.settings(max_examples=25)
@hypothesis.given(searches(), st.integers(1, 6), st.integers(0, 12))
def test_everything_equals_loops(ties, way, search, block, results):
    (points, labels), gallery = search
    alone = gallery is None
    others, other_labels = gallery or (points, labels)
    relevant = (labels[:, None] == other_labels).sum(1) - int(alone)
    hypothesis.assume(bool((relevant > 0).any()) and len(other_labels.unique()) > 1)
    with pytest.MonkeyPatch.context() as patch:
        set_way(patch, way)
        found = evaluate(points, labels, *(gallery or ()), ks=KS, ties=ties, block=block, results=results)
    unit = torch.nn.functional.normalize
    similarity = unit(points, dim=1) @ unit(others, dim=1).T
    expected, first = naive(similarity, labels, other_labels, alone, ties, results)

    assert found.rows.tolist() == list(expected)
    assert found.queries == len(expected)
    assert found.without_positive == len(labels) - len(expected)
    assert found.first.tolist() == list(first.values())
    assert torch.equal(found.first_labels, other_labels[found.first])
    assert torch.equal(found.labels, labels[found.rows])
    for name, values in found.per_query.items():
        assert values.tolist() == pytest.approx([row[name] for row in expected.values()], abs=1e-9), name
        assert found.metrics()[name] == pytest.approx(values.mean().item(), abs=1e-9)
    precision = torch.tensor([row["precision"] for row in expected.values()]).mean(0)
    torch.testing.assert_close(found.pr_curve[1].float(), precision)
    rates = [
        sum(
            sum(row["hits"][: r + 1]) / sum(row["hits"])
            for row in expected.values()
            for r in [_cut(row["hits"], rate)]
        )
        / len(expected)
        for rate in found.roc_curve[0].tolist()
    ]
    assert found.roc_curve[1].tolist() == pytest.approx(rates)


@pytest.mark.parametrize("way", ["compare", "sort", "compare as a GPU", "sort as a GPU"])
@pytest.mark.parametrize("ties", ["index", "pessimistic"])
@hypothesis.settings(max_examples=25)
@hypothesis.given(searches(), st.integers(1, 6), st.integers(0, 12), st.integers(1, 5), st.integers(0, 99))
def test_what_is_excluded_counts_neither_for_nor_against(ties, way, search, block, results, cameras, seed):
    (points, labels), gallery = search
    alone = gallery is None
    others, other_labels = gallery or (points, labels)
    generator = torch.Generator().manual_seed(seed)
    camera, other = (
        torch.randint(-1, cameras, (len(side),), generator=generator) for side in (labels, other_labels)
    )
    other = camera if alone else other

    cameras_of_queries, cameras_of_others = camera.tolist(), other.tolist()

    def excluded(q, c):
        return 0 <= cameras_of_queries[q] == cameras_of_others[c]

    unit = torch.nn.functional.normalize
    similarity = unit(points, dim=1) @ unit(others, dim=1).T
    expected, first = naive(similarity, labels, other_labels, alone, ties, results, excluded)
    hypothesis.assume(expected and len(other_labels.unique()) > 1)
    with pytest.MonkeyPatch.context() as patch:
        set_way(patch, way)
        codes = {"exclude": camera} | ({} if alone else {"gallery_exclude": other})
        options = {"ks": KS, "ties": ties, "block": block, "results": results}
        found = evaluate(points, labels, *(gallery or ()), **options, **codes)
    assert found.rows.tolist() == list(expected)
    shown = min(len(row) for row in first.values())  # as many as every query has
    assert found.first.tolist() == [row[:shown] for row in first.values()]
    for name, values in found.per_query.items():
        assert values.tolist() == pytest.approx([row[name] for row in expected.values()]), name


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        ({"exclude": [0]}, r"exclude: got torch.int64 of shape \(1,\), need 4 integers"),
        ({"exclude": [0.5] * 4}, r"exclude: got torch.float64 of shape \(4,\), need 4 integers"),
        (
            {"exclude": [0, 0, 1, 1]},
            "no query has another image of its class in the gallery that is not excl",
        ),
    ],
)
def test_wrong_codes_are_named(codes, told):
    with pytest.raises(ValueError, match=told):
        evaluate(torch.eye(4), torch.tensor([0, 0, 1, 1]), **codes)
    with pytest.raises(ValueError, match="gallery_exclude=None: give the codes of the gallery"):
        evaluate(torch.eye(4), torch.arange(4), torch.eye(4), torch.arange(4), exclude=[0] * 4)


def _cut(hits, rate):
    """The last rank that lets at most `rate` of the negatives pass."""
    allowed = rate * (len(hits) - sum(hits)) + 1e-9
    passed = accumulate(not hit for hit in hits)
    return max((r for r, wrong in enumerate(passed) if wrong <= allowed), default=-1)


@pytest.fixture(scope="module")
def birds():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(12, (300,), generator=generator)
    centers = torch.randn(12, 16, generator=generator)
    return centers[labels] + 2 * torch.randn(300, 16, generator=generator), labels


@pytest.mark.parametrize("classes", [7, 2500])  # ranks by sorting, and by comparing
def test_a_wide_gallery_equals_sorting(classes):
    generator = torch.Generator().manual_seed(1)
    gallery = torch.randn(5000, 8, generator=generator, dtype=torch.float64)
    gallery_labels = torch.arange(5000) % classes
    points, labels = torch.randn(7, 8, generator=generator, dtype=torch.float64), torch.arange(7)
    found = evaluate(points, labels, gallery, gallery_labels, results=300)
    unit = torch.nn.functional.normalize
    order = (unit(points, dim=1) @ unit(gallery, dim=1).T).argsort(dim=1, descending=True)
    assert torch.equal(found.first, order[:, :300])
    hits = (gallery_labels[order] == labels[:, None]).double()
    at = hits.cumsum(1) / torch.arange(1, 5001)
    torch.testing.assert_close(found.per_query["mAP"], 100 * (at * hits).sum(1) / hits.sum(1))


def test_ties_far_apart():
    """Forty copies of the best candidate, each among sixty-three worse ones: the first of them come first."""
    gallery = torch.tensor([0.0, 1.0]).repeat(40 * 64, 1)
    gallery[17::64] = torch.tensor([1.0, 0.0])
    labels = torch.zeros(40 * 64).long()
    labels[17] = 1
    found = evaluate(torch.tensor([[1.0, 0.0]]), torch.ones(1).long(), gallery, labels, results=3)
    assert found.first.tolist() == [[17, 81, 145]]
    worst = evaluate(
        torch.tensor([[1.0, 0.0]]), torch.ones(1).long(), gallery, labels, results=3, ties="pessimistic"
    )
    assert worst.first.tolist() == [[81, 145, 209]]
    assert worst.mrr == pytest.approx(100 / 40)


def test_scikit_learn_agrees(birds):
    points, labels = (part[:120] for part in birds)  # it takes 10 ms each
    found = evaluate(points, labels)
    unit = torch.nn.functional.normalize(points, dim=1)
    similarity = unit @ unit.T
    recall_levels = found.pr_curve[0].numpy()
    curves, areas, averages = [], [], []
    for q in range(len(labels)):
        others = torch.arange(len(labels)) != q
        truth, score = (labels == labels[q])[others].numpy(), similarity[q][others].numpy()
        averages.append(100 * sklearn.metrics.average_precision_score(truth, score))
        areas.append(100 * sklearn.metrics.roc_auc_score(truth, score))
        precision, recall, _ = sklearn.metrics.precision_recall_curve(truth, score)
        precision, recall = precision[:-1], recall[:-1]  # the last point is a convention, not a cut
        curves.append([precision[recall >= level - 1e-9].max() for level in recall_levels])
    assert found.per_query["mAP"].tolist() == pytest.approx(averages)
    assert found.per_query["AUC"].tolist() == pytest.approx(areas)
    torch.testing.assert_close(found.pr_curve[1], torch.tensor(curves, dtype=torch.float64).mean(0))


def test_pytorch_metric_learning_agrees(birds):
    points, labels = birds
    theirs = AccuracyCalculator(
        include=(
            "precision_at_1",
            "r_precision",
            "mean_average_precision_at_r",
            "mean_average_precision",
            "mean_reciprocal_rank",
        ),
        k=len(labels) - 1,
        knn_func=_cosine,
        device=torch.device("cpu"),
    ).get_accuracy(points, labels)
    row = evaluate(points, labels).metrics()
    ours = {
        "precision_at_1": row["P@1"],
        "r_precision": row["P@R"],
        "mean_average_precision_at_r": row["MAP@R"],
        "mean_average_precision": row["mAP"],
        "mean_reciprocal_rank": row["MRR"],
    }
    assert ours == pytest.approx({name: 100 * value for name, value in theirs.items()}, rel=1e-5)


def _cosine(query, k, reference, same_source):
    unit = torch.nn.functional.normalize
    similarity = unit(query, dim=1) @ unit(reference, dim=1).T
    if same_source:
        similarity.fill_diagonal_(-2)
    return similarity.topk(k, dim=1)


def test_the_copy_of_a_query_is_a_result_and_the_query_is_not():
    points = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8], [0.6, 0.8]])
    found = evaluate(points, torch.tensor([0, 1, 0, 1]))
    assert found.first[:, 0].tolist() == [1, 0, 3, 2]
    assert found.precision[1] == 0
    assert (
        evaluate(points, torch.tensor([0, 1, 0, 1]), points, torch.tensor([0, 1, 0, 1])).metrics()
        == found.metrics()
    )


@pytest.mark.parametrize(("count", "queries"), [(65, 1), (2049, 3), (1100, 18)])
def test_copies_tie_wherever_they_stand(monkeypatch, count, queries):
    """A product rounds differently at its ragged edges; copies of an image must not."""
    monkeypatch.setattr(ranks, "_CPU", ranks.Sizes(2**12, 2**11, 2**10, 2**15, sort_above=24))
    generator = torch.Generator().manual_seed(0)
    pictures, copies = (
        torch.randn(5, 64, generator=generator),
        torch.randint(5, (count,), generator=generator),
    )
    points, labels = torch.randn(queries, 64, generator=generator), torch.zeros(queries).long()
    found = evaluate(points, labels, pictures[copies], torch.arange(count) % 2, results=count)
    unit = torch.nn.functional.normalize
    nearness = (unit(points, dim=1).double() @ unit(pictures, dim=1).double().T)[:, copies]
    expected = nearness.argsort(dim=1, descending=True, stable=True)
    assert torch.equal(found.first, expected)
    first_even = (expected % 2 == 0).long().argmax(dim=1)
    torch.testing.assert_close(found.per_query["MRR"], 100 / (first_even + 1).double())


@pytest.mark.parametrize("ties", ["index", "pessimistic"])
def test_threads_do_not_matter(birds, ties):
    points, labels = birds
    threads = torch.get_num_threads()
    found = []
    for number in (1, 3):
        torch.set_num_threads(number)
        found.append(evaluate(points.round(), labels % 2, ties=ties))
    torch.set_num_threads(threads)
    one, three = found
    assert all(torch.equal(values, three.per_query[name]) for name, values in one.per_query.items())


def test_ties_by_index_or_against_us():
    """All candidates are equal: the order is the tie rule alone."""
    points, labels = torch.ones(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    by_index, worst = (evaluate(points, labels, ties=ties) for ties in ("index", "pessimistic"))
    assert by_index.first[0].tolist() == [1, 2, 3, 4, 5]
    assert by_index.per_query["MRR"].tolist() == pytest.approx([50, 100 / 3, 100, 50, 100, 50])
    assert worst.first[0].tolist() == [1, 3, 5, 2, 4]
    assert worst.per_query["MRR"].tolist() == [25] * 6
    assert worst.auc == 0


def test_an_interval_of_what_never_varies_tells_how_few_it_is_from():
    # 95 % of all lots of n whose share is `low` have a miss, or 97.5 % of them on one side.
    for count in (5, 50):
        ((low, high), (least, most)) = bootstrap_intervals(torch.tensor([[100.0] * count, [0.0] * count]))
        assert (high, least) == (100.0, 0.0)
        assert (low / 100) ** count == pytest.approx(0.025)
        assert most == pytest.approx(100 - low)


def test_intervals(birds):
    found = evaluate(*birds)
    low, high = found.interval("P@1")
    assert (low, high) == found.interval("P@1", seed=0)
    assert (low, high) != found.interval("P@1", seed=1)
    share = found.precision[1] / 100
    expected = 2 * 1.96 * 100 * (share * (1 - share) / found.queries) ** 0.5  # the normal approximation
    assert low < found.precision[1] < high
    assert high - low == pytest.approx(expected, rel=0.1)
    # whole classes: as many independent parts as there are classes
    sums = torch.zeros(12, dtype=torch.float64).index_add(0, found.labels, found.per_query["mAP"])
    counts = torch.bincount(found.labels)
    spread = (sums - found.metrics()["mAP"] * counts).square().sum().sqrt() / counts.sum()
    low, high = found.interval("mAP", over="classes", samples=4000)
    assert high - low == pytest.approx(2 * 1.96 * spread.item(), rel=0.15)


def test_by_class_and_confusions(birds):
    found = evaluate(*birds)
    classes = found.by_class("mAP")
    assert sorted(classes) == list(range(12))
    assert [row["mAP"] for row in classes.values()] == sorted(row["mAP"] for row in classes.values())
    for label, row in classes.items():
        assert row["P@1"] == pytest.approx(found.per_query["P@1"][found.labels == label].mean().item())
        assert row["queries"] == (birds[1] == label).sum()
    wrong = {}
    for label, other in zip(found.labels.tolist(), found.first_labels[:, 0].tolist(), strict=True):
        if label != other:
            wrong[label, other] = wrong.get((label, other), 0) + 1
    pairs = found.confusions(1000)
    assert {pair[:2]: pair[2] for pair in pairs} == wrong
    assert [pair[2] for pair in pairs] == sorted(wrong.values(), reverse=True)
    assert found.confusions(3) == pairs[:3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(birds, dtype):
    points, labels = birds[0].to(dtype), birds[1]
    assert evaluate(points, labels).metrics() == pytest.approx(
        evaluate(points.double(), labels).metrics(), abs=0.05
    )


def test_lengths_do_not_matter(birds):
    points, labels = birds
    lengths = torch.logspace(-30, 30, len(labels))[:, None]
    expected = evaluate(points.double(), labels).metrics()
    assert evaluate(points * lengths, labels).metrics() == pytest.approx(expected, abs=0.05)


two = torch.tensor([0, 0, 1])


def test_arrays_and_lists_are_measured_as_tensors_are():
    points, labels = torch.randn(30, 5), torch.arange(30) % 4
    expected = evaluate(points, labels).metrics()
    array = points.numpy()
    assert evaluate(array, labels.numpy()).metrics() == expected
    assert (
        evaluate(array, labels.numpy(), array, labels.numpy()).metrics() == expected
    )  # each leaves itself out
    assert evaluate(points.tolist(), labels.tolist()).metrics() == expected
    apart = evaluate(points[:9], labels[:9], points[9:], labels[9:]).metrics()
    assert evaluate(array[:9], labels[:9], array[9:], labels[9:].numpy()).metrics() == apart


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((torch.eye(3), torch.arange(3)), "labels: .*nothing to find"),
        ((torch.eye(3), np.array(["auk", "auk", "wren"])), "labels: got ndarray, not numbers"),
        (("vectors.npz", two), "embeddings: got str, not numbers; give a tensor"),
        ((None, two), "embeddings: got NoneType"),
        ((torch.eye(3), torch.zeros(3).long()), "labels: all 3 are of one class"),
        ((torch.eye(3), two, torch.eye(3), torch.zeros(3).long()), "gallery_labels: all 3 are of one class"),
        ((torch.eye(3), torch.zeros(2).long()), "labels: .*one label per row"),
        ((torch.eye(3), two.float()), "labels: .*integers"),
        ((torch.eye(3).long(), two), "embeddings: .*floats"),
        ((torch.eye(3) / 0, two), "embeddings: row 0 holds NaN"),
        (
            (torch.eye(3), two, torch.tensor([[1.0, 0, 0], [0, torch.inf, 0]]), two[1:]),
            "gallery: row 1 .*inf",
        ),
        ((torch.diag(torch.tensor([1.0, 1, 0])), two), "embeddings: row 2 is zero"),
        ((torch.eye(3), two, torch.eye(3)), "gallery_labels=None"),
        ((torch.eye(3), two, torch.eye(2), two[1:]), "gallery: 2 dimensions"),
        ((torch.empty(0, 3), torch.empty(0).long()), r"embeddings: got shape \(0, 3\)"),
        ((torch.eye(3), two, torch.empty(0, 3), torch.empty(0).long()), r"gallery: got shape \(0, 3\)"),
    ],
)
def test_wrong_input_is_named(arguments, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        evaluate(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ks": (0,)}, r"ks=\(0,\)"),
        ({"ks": ()}, r"ks=\(\)"),
        ({"ties": "random"}, "ties='random'"),
        ({"results": -1}, "results=-1"),
        ({"block": 0}, "block=0"),
    ],
)
def test_wrong_options_are_named(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        evaluate(torch.eye(3), two, **options)


@pytest.mark.parametrize("call", [lambda r: r.interval("P@7"), lambda r: r.interval(over="images")])
def test_wrong_intervals_are_named(birds, call):
    with pytest.raises(ValueError, match=r"P@7|images"):
        call(evaluate(*birds))


@pytest.mark.filterwarnings("error")
def test_arrays_of_any_make():
    points = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    labels = np.arange(12) // 3
    expected = evaluate(torch.from_numpy(points), torch.from_numpy(labels)).metrics()
    fixed = points.copy()
    fixed.flags.writeable = False
    for given in (
        points[::-1][::-1],
        points.astype(">f4"),
        fixed,
        points.tolist(),
        list(torch.from_numpy(points)),
    ):
        assert evaluate(given, labels[::-1][::-1]).metrics() == expected
