"""Gradients written down by hand: those of the plain formulas, once and twice differentiated."""

import pytest
import torch

from firstpage import Pairs, losses
from firstpage._sphere import distances, products, squared_distances, unit
from firstpage.losses.base import logsumexp_and_shares, masked_logsumexp
from firstpage.losses.soft_triple import _soft_maximum
from firstpage.mining import Mined, mine
from support.batches import CLASSES, DIM

MASK = torch.tensor([[True, True, False, True], [False, False, False, False], [False, True, True, False]])


def values(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


FORMULAS = {
    "unit": (unit, (3, 4)),
    "own products": (lambda x: products(x, x), (3, 4)),
    "distances": (lambda x: distances(x.tanh()), (3, 4)),
    "squared distances": (lambda x: squared_distances(x.tanh()), (3, 4)),
    "log-sum-exp of rows": (lambda x: masked_logsumexp(x, MASK, scale=-3.0)[[0, 2]], (3, 4)),
    "log-sum-exp of columns": (lambda x: masked_logsumexp(x, MASK, dim=0, scale=3.0), (3, 4)),
    "log-sum-exp and shares": (lambda x: [part[[0, 2]] for part in logsumexp_and_shares(x, MASK)], (3, 4)),
    "soft maximum": (lambda x: _soft_maximum(x, 0.5), (2, 3, 4)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_once_and_twice_differentiated(name):
    formula, shape = FORMULAS[name]
    parts = formula(values(*shape))
    for index in range(len(parts) if isinstance(parts, list) else 1):

        def part(x, index=index):
            result = formula(x)
            return result[index] if isinstance(result, list) else result

        argument = values(*shape).requires_grad_()
        assert torch.autograd.gradcheck(part, argument)
        assert torch.autograd.gradgradcheck(part, argument)


@pytest.mark.parametrize("name", FORMULAS)
def test_same_values_as_without_a_gradient(name):
    formula, shape = FORMULAS[name]
    torch.testing.assert_close(formula(values(*shape)), formula(values(*shape).requires_grad_()))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, -1e4])
def test_log_sum_exp_neither_overflows_nor_vanishes(scale):
    inputs = values(3, 4).float().requires_grad_()
    result = masked_logsumexp(inputs, MASK, scale=scale)
    result.sum().backward()
    exact = torch.where(MASK, scale * inputs.detach().double(), -torch.inf).logsumexp(dim=1)
    torch.testing.assert_close(result[[0, 2]], exact[[0, 2]].float())
    assert result[1].isfinite()
    assert result[1] < -1e30
    assert inputs.grad.isfinite().all()
    assert (inputs.grad[~MASK] == 0).all()  # also of the row that has no entry
    torch.testing.assert_close(inputs.grad.sum(dim=1), scale * torch.tensor([1.0, 0.0, 1.0]))


def test_shares_of_nothing_are_zero():
    for inputs in (values(3, 4), values(3, 4).requires_grad_()):
        _, shares = logsumexp_and_shares(inputs, MASK)
        torch.testing.assert_close(shares.sum(dim=1).detach(), torch.tensor([1.0, 0.0, 1.0]).double())
        assert (shares[~MASK] == 0).all()


def test_other_candidates_share_the_normalized_queries():
    queries, labels = values(6, DIM).requires_grad_(), torch.arange(6) % CLASSES
    candidates, classes = values(CLASSES, DIM), torch.arange(CLASSES)
    pairs = Pairs.of(queries, labels)
    others = pairs.against(candidates, classes)
    expected = Pairs.of(queries, labels, candidates, classes)
    assert others.unit_queries is pairs.unit_queries
    torch.testing.assert_close(others.similarity, expected.similarity)
    assert torch.equal(others.positive, expected.positive)
    assert torch.equal(others.negative, expected.negative)


def test_proxies_that_became_nan_are_named():
    loss = losses.ProxyNCA(CLASSES, DIM)
    loss.proxies.data[1] = torch.nan
    with pytest.raises(ValueError, match="row 1 holds NaN"):
        loss(torch.randn(4, DIM), torch.arange(4))


def test_both_sides_in_one_gather():
    positives, negatives = torch.tensor([[1, 2], [0, 2]]), torch.tensor([[3], [3]])
    everything = torch.ones(2, 2, dtype=torch.bool)
    mined = Mined(positives, everything, negatives, everything[:, :1], paired=False)
    matrix = values(2, 4)
    positive, negative = mined.of_both(matrix)
    assert torch.equal(positive, mined.of_positives(matrix))
    assert torch.equal(negative, mined.of_negatives(matrix))


@pytest.mark.parametrize("positives", ["easy", "hard"])
def test_mining_does_not_hide_a_similarity_that_is_nan(positives):
    pairs = Pairs.of(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    pairs = pairs.probe(torch.full((4, 4), torch.nan))
    mined = mine(pairs, positives, "hard")
    assert mined.comparable.all()
