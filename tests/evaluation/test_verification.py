"""Verification against loops and scikit-learn, with folds read from a pairs.txt."""

import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import sklearn.metrics
import torch

from firstpage.data.catalog import VerificationPairs
from firstpage.data.readers.lfw import read_lfw
from firstpage.evaluation import verification, verify


def naive(score, same, folds):
    """Each fold by the threshold that judges most of the others right."""
    accuracies = []
    for fold in sorted(set(folds)):
        others = [(s, y) for s, y, f in zip(score, same, folds, strict=True) if f != fold]
        levels = sorted({s for s, _ in others}, reverse=True)
        ends = [levels[0] + 1, *levels, levels[-1] - 1]
        best, threshold = -1, None
        for cut in [(a + b) / 2 for a, b in itertools.pairwise(ends)]:
            right = sum((s >= cut) == y for s, y in others)
            if right > best:
                best, threshold = right, cut
        own = [(s >= threshold) == y for s, y, f in zip(score, same, folds, strict=True) if f == fold]
        accuracies.append(100 * sum(own) / len(own))
    mean = sum(accuracies) / len(accuracies)
    deviation = (sum((a - mean) ** 2 for a in accuracies) / (len(accuracies) - 1)) ** 0.5
    return mean, deviation / len(accuracies) ** 0.5


@st.composite
def problems(draw):
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    count, folds = draw(st.integers(4, 40)), draw(st.integers(2, 5))
    # Corners of a cube tie often and have exact cosines.
    points = random.integers(0, 2, (10, 4)) * 2.0 - 1 if draw(st.booleans()) else random.normal(size=(10, 4))
    left, right = random.integers(0, 10, (2, count))
    same = random.random(count) < 0.5
    same[:2] = True, False
    return torch.tensor(points), VerificationPairs(np.arange(count) % folds + 1, left, right, same)


@hypothesis.given(problems())
def test_it_equals_loops_and_scikit_learn(problem):
    points, pairs = problem
    unit = torch.nn.functional.normalize(points, dim=1)
    exact = [float(unit[a] @ unit[b]) for a, b in zip(pairs.left, pairs.right, strict=True)]
    score = [round(s, 12) for s in exact]  # equal pairs stay equal whichever way they were added
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "_CHUNK", 20)
        patch.setattr(verification, "_cosines", _rounded(verification._cosines))
        found = verify(points, pairs, far=(0, 0.1, 0.5, 1))
    accuracy, error = naive(score, pairs.same.tolist(), pairs.folds.tolist())
    assert found.accuracy == pytest.approx(accuracy)
    assert found.standard_error == pytest.approx(error)
    assert found.pairs == len(pairs)
    assert found.auc == pytest.approx(100 * sklearn.metrics.roc_auc_score(pairs.same, score))
    false_rate, true_rate, _ = sklearn.metrics.roc_curve(pairs.same, score, drop_intermediate=False)
    assert found.roc[0].tolist() == pytest.approx(false_rate.tolist())
    assert found.roc[1].tolist() == pytest.approx(true_rate.tolist())
    for far, tar in found.tar.items():
        assert tar == pytest.approx(100 * true_rate[false_rate <= far + 1e-12].max())


def _rounded(cosines):
    return lambda *arguments: (cosines(*arguments) * 1e12).round() / 1e12


def test_folds_come_from_pairs_txt(tmp_path):
    """Ten folds as LFW lists them; one of them is judged wrongly throughout."""
    lines = ["10\t1"]
    for _ in range(10):
        lines += ["Ann\t1\t2", "Ann\t1\tBob\t1"]
    lines[-2:] = ["Ann\t3\t1", "Ann\t3\tBob\t1"]  # Ann's third picture looks like Bob
    tmp_path.joinpath("pairs.txt").write_text("\n".join(lines) + "\n")
    for name, count in (("Ann", 3), ("Bob", 1)):
        tmp_path.joinpath(name).mkdir()
        for image in range(count):
            tmp_path.joinpath(name, f"{name}_{image + 1:04d}.jpg").touch()
    catalog = read_lfw(tmp_path)
    assert catalog.paths[-1].startswith("Bob")
    points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.1, 1.0], [0.0, 1.0]])
    found = verify(points, catalog.pairs)
    assert found.accuracy == 90
    assert found.standard_error == pytest.approx(10)  # nine of 100 and one of 0: 31.6 / √10
    # Ann's third picture is the pair most alike of all: without it all same pairs pass, with it none does.
    assert found.tar == {0.1: 100, 0.01: 0, 0.001: 0}
    assert len(found.thresholds) == 10


zero, one = np.zeros(4, np.int64), np.ones(4, np.int64)
both = np.array([True, False, True, False])


@pytest.mark.parametrize(
    ("points", "pairs", "far", "complaint"),
    [
        (torch.eye(2), VerificationPairs(zero, zero, one, both), (0.1,), "one fold"),
        (
            torch.eye(2),
            VerificationPairs(np.arange(4), zero, one, both | True),
            (0.1,),
            "4 of 4 are the same",
        ),
        (torch.eye(2), VerificationPairs(zero[:0], zero[:0], one[:0], both[:0]), (0.1,), "0 of 0"),
        (torch.eye(2), VerificationPairs(np.arange(4), zero, one + 1, both), (0.1,), "rows 0 to 2"),
        (torch.eye(2), VerificationPairs(np.arange(4), zero, one, both), (1.5,), r"far=\(1.5,\)"),
        (torch.eye(2), torch.arange(2), (0.1,), "pairs: got Tensor; give VerificationPairs"),
        (torch.eye(2).long(), VerificationPairs(np.arange(4), zero, one, both), (0.1,), "need floats"),
        (torch.zeros(2, 0), VerificationPairs(np.arange(4), zero, one, both), (0.1,), "got shape"),
        (torch.zeros(2, 2), VerificationPairs(np.arange(4), zero, one, both), (0.1,), "row 0 is zero"),
        (torch.eye(2) / 0, VerificationPairs(np.arange(4), zero, one, both), (0.1,), "row 0 holds NaN"),
    ],
)
def test_wrong_input_is_named(points, pairs, far, complaint):
    with pytest.raises(ValueError, match=complaint):
        verify(points, pairs, far=far)


def test_arrays_are_verified_as_tensors_are():
    pairs = VerificationPairs(np.arange(4) % 2, zero, np.arange(4), np.arange(4) % 3 == 0)
    points = torch.randn(4, 3)
    assert verify(points.numpy(), pairs).metrics() == verify(points, pairs).metrics()
