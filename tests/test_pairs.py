"""Pairs: what it computes, what it leaves out, and what it refuses."""

import pytest
import torch

from firstpage import Pairs
from firstpage.pairs import unit
from support.batches import batch


def test_matrices_equal_loops():
    embeddings, labels = batch(0)
    embeddings = embeddings.detach()
    pairs = Pairs.of(embeddings, labels)
    vectors = [row / row.norm() for row in embeddings]
    for i in range(10):
        for j in range(10):
            assert pairs.similarity[i, j].item() == pytest.approx(float(vectors[i] @ vectors[j]))
            assert pairs.distance[i, j].item() == pytest.approx(
                float((vectors[i] - vectors[j]).norm()), abs=1e-7
            )
            assert pairs.positive[i, j] == (i != j and labels[i] == labels[j])
            assert pairs.negative[i, j] == (labels[i] != labels[j])


def test_candidates_are_another_set_unless_ids_say_otherwise():
    queries, labels = batch(1, count=4)
    gallery, gallery_labels = batch(2, count=6)
    apart = Pairs.of(queries, labels, gallery, gallery_labels)
    assert torch.equal(apart.positive, labels[:, None] == gallery_labels)
    assert torch.equal(apart.positive, ~apart.negative)
    same = Pairs.of(
        queries, labels, gallery, gallery_labels, image_ids=torch.arange(4), candidate_ids=torch.arange(2, 8)
    )
    for query, candidate in ((2, 0), (3, 1)):
        assert not same.positive[query, candidate]
        assert not same.negative[query, candidate]
    assert (apart.positive ^ same.positive).sum() + (apart.negative ^ same.negative).sum() == 2


def test_the_batch_passed_as_its_own_candidates_leaves_the_diagonal_out():
    embeddings, labels = batch(3)
    pairs = Pairs.of(embeddings, labels, embeddings, labels)
    assert not pairs.positive.diagonal().any()


def test_an_image_repeated_in_the_batch_is_not_its_own_positive():
    embeddings, _ = batch(4, count=3)
    pairs = Pairs.of(embeddings, torch.zeros(3, dtype=torch.long), image_ids=torch.tensor([7, 8, 7]))
    assert pairs.positive.tolist() == [[False, True, False], [True, False, True], [False, True, False]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_compared_in_float32(dtype):
    embeddings, labels = batch(5, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pairs = Pairs.of(embeddings, labels)
        again = pairs.with_constant_candidates().similarity
    assert pairs.similarity.dtype == torch.float32
    torch.testing.assert_close(pairs.similarity, Pairs.of(embeddings.float(), labels).similarity)
    torch.testing.assert_close(again, pairs.similarity)


def test_half_precision_memory_beside_float32_queries():
    embeddings, labels = batch(6, dtype=torch.float32)
    pairs = Pairs.of(embeddings, labels, embeddings.detach().half(), labels)
    assert pairs.similarity.dtype == torch.float32


def test_distance_has_a_finite_gradient_everywhere():
    points = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 1e-8], [1.0, 3e-3]], requires_grad=True)
    distance = Pairs.of(points, torch.arange(5)).distance
    distance.sum().backward()
    assert points.grad.isfinite().all()
    assert (distance[0, [0, 1, 3]] == 0).all()
    assert distance[0, 2] == 2
    assert distance[0, 4].item() == pytest.approx(3e-3, rel=0.1)


def test_distance_passes_gradcheck():
    embeddings, labels = batch(7, count=5)
    apart = ~torch.eye(5, dtype=torch.bool)
    assert torch.autograd.gradcheck(lambda e: Pairs.of(e, labels).distance[apart], (embeddings,))


def test_unit_of_zero_is_zero_with_finite_gradient():
    vectors = torch.zeros(2, 3, requires_grad=True)
    unit(vectors).sum().backward()
    assert vectors.grad.isfinite().all()


def test_only_queries_move_when_candidates_are_constant():
    embeddings, labels = batch(8)
    pairs = Pairs.of(embeddings, labels)
    constant = pairs.with_constant_candidates()
    torch.testing.assert_close(constant.similarity, pairs.similarity)
    weights = torch.randn(10, 10, dtype=torch.float64)
    gallery = embeddings.detach().clone().requires_grad_()
    explicit = Pairs.of(embeddings, labels, gallery.detach(), labels)
    (mine,) = torch.autograd.grad((constant.similarity * weights).sum(), embeddings)
    (other,) = torch.autograd.grad((explicit.similarity * weights).sum(), embeddings)
    torch.testing.assert_close(mine, other)


GOOD = torch.eye(3)
LABELS = torch.tensor([0, 0, 1])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((torch.ones(3), LABELS), r"embeddings: got shape \(3,\), need a tensor \[images, dimensions\]"),
        ((torch.ones(0, 3), LABELS), "one row per image"),
        (([[1.0]], LABELS), "embeddings: got list"),
        ((torch.eye(3, dtype=torch.long), LABELS), r"embeddings: got dtype torch.int64, need floats"),
        ((GOOD, LABELS[:2]), r"labels: got shape \(2,\), need a tensor of shape \(3,\)"),
        ((GOOD, LABELS.float()), r"labels: got dtype torch.float32, need integers: call labels.long\(\)"),
        ((GOOD, [0, 0, 1]), "labels: got list"),
        ((GOOD * torch.nan, LABELS), "embeddings: row 0 holds NaN or infinity"),
        ((GOOD, LABELS, GOOD), "candidates need candidate_labels"),
        ((GOOD, LABELS, None, LABELS), "candidates=None"),
        ((GOOD, LABELS, torch.eye(2), LABELS[:2]), "candidates have 2 dimensions and embeddings 3"),
        ((GOOD, LABELS, GOOD / 0.0, LABELS), "candidates: row 0 holds NaN"),
        ((GOOD, LABELS, GOOD, LABELS[:1]), "candidate_labels: got shape"),
    ],
)
def test_wrong_input_is_named_with_its_remedy(arguments, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        Pairs.of(*arguments)
    assert "\n" not in str(caught.value)


def test_ids_come_in_twos_and_as_integers():
    with pytest.raises(ValueError, match=r"candidate_ids=None: .* go together"):
        Pairs.of(GOOD, LABELS, GOOD.clone(), LABELS, image_ids=LABELS)
    with pytest.raises(ValueError, match="image_ids: got dtype"):
        Pairs.of(GOOD, LABELS, image_ids=LABELS.float())


def test_labels_on_another_device_are_named():
    with pytest.raises(ValueError, match=r"labels on meta, embeddings on cpu: call labels.to\('cpu'\)"):
        Pairs.of(GOOD, LABELS.to("meta"))
    with pytest.raises(ValueError, match=r"candidates on meta, embeddings on cpu"):
        Pairs.of(GOOD, LABELS, GOOD.to("meta"), LABELS.to("meta"))
