"""Smooth ranks of positives among all candidates, which the losses over whole rankings share.

A rank compares a positive with every candidate: Q × P × C numbers. They are made in blocks of bounded size
and not kept; the backward pass makes them again. So memory is O(Q × C) whatever the classes, and time that of
Q × P × C sigmoids, twice. How many positives there are is a value, and reading it would wait for a GPU: there
P is a bound that a loss knows, or the number of candidates if that is smaller. On the CPU, where looking is
free, P is the largest number of positives that a query has.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from firstpage.pairs import Pairs, full_precision

MOST = 256  # positives of a query that are ranked; of more, as many, evenly spread over their order
BLOCK = 2**24  # numbers in a block: 64 MiB in float32


class Step(NamedTuple):
    """How much a candidate that is t more similar counts as being above: a smooth step at t = 0.

    σ(t/temperature) up to t = `bend`, with `jump` added where t > 0; beyond it slope·(t − bend) + level.

    >>> step = Step(temperature=0.01)
    >>> step.value(torch.tensor([-0.1, 0.0, 0.1])).round(decimals=3)
    tensor([0.0000, 0.5000, 1.0000])
    """

    temperature: float
    jump: float = 0.0
    bend: float = float("inf")
    slope: float = 0.0
    level: float = 0.0

    def value(self, t: Tensor) -> Tensor:
        """The step at each t."""
        value = (t / self.temperature).sigmoid_()
        if self.jump:
            value += self.jump * (t > 0)
        if self.bend < float("inf"):
            value = torch.where(t > self.bend, self.slope * (t - self.bend) + self.level, value)
        return value

    def derivative(self, t: Tensor) -> Tensor:
        """The derivative at each t; jumps have none."""
        value = (t / self.temperature).sigmoid_()
        value = value.mul_(1 - value).div_(self.temperature)
        return value if self.bend == float("inf") else value.masked_fill_(t > self.bend, self.slope)


def spread_positives(pairs: Pairs, most: int = MOST) -> tuple[Tensor, Tensor, Tensor]:
    """The positives to rank: their index [Q, P], mask [Q, P], and how many positives are above each [Q, P].

    All of a query's positives, the most similar first. Of more than `most` as many, evenly spread over that
    order, so that a mean over them is close to the mean over all.

    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 0, 0]))
    >>> index, mask, above = spread_positives(pairs)
    >>> index[0], above[0]
    (tensor([2, 1]), tensor([0, 1]))
    """
    count = pairs.positive.sum(dim=1, keepdim=True)  # [Q, 1]
    similarity = pairs.similarity.detach()
    ordered, order = similarity.masked_fill(~pairs.positive, -torch.inf).sort(dim=1, descending=True)
    slot = torch.arange(slots(pairs, most), device=order.device)
    place = torch.where(count > most, (2 * slot + 1) * count // (2 * most), slot)
    bound = ordered.gather(1, place)
    return order.gather(1, place), slot < count, torch.searchsorted(-ordered, -bound)


def slots(pairs: Pairs, most: int) -> int:
    """How many positives a query may have, at most `most`: the largest number on the CPU, else a bound.

    >>> slots(Pairs.of(torch.eye(3), torch.tensor([0, 0, 1])), 256)
    1
    """
    most = min(most, pairs.positive.shape[1])
    if torch.compiler.is_compiling() or pairs.positive.device.type != "cpu":
        return most
    return min(most, max(1, int(pairs.positive.sum(dim=1).max())))


def count_above(pairs: Pairs, index: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    """Σ_z step(s_z − s_x) over the positives z and over the negatives z of each query; x = index[q, p].

    Both are [Q, P]. A positive x also counts itself, as step(0), without a gradient.

    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 0, 1]))
    >>> [count[0] for count in count_above(pairs, torch.tensor([[1], [0], [0]]), Step(0.01))]
    [tensor([0.5000]), tensor([1.])]
    """
    bound = pairs.similarity.gather(1, index)
    counts = _count_above(pairs.similarity, bound, pairs.positive, pairs.negative, list(step))
    return counts[..., 0], counts[..., 1]


def _blocks(bounds: Tensor, scores: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of the [Q, P] bounds which, compared with all scores of their rows, are about a block each."""
    (rows, columns), candidates = bounds.shape, scores.shape[1]
    width = min(columns, max(1, BLOCK // candidates))
    height = max(1, BLOCK // (candidates * width))
    for top in range(0, rows, height):
        for left in range(0, columns, width):
            yield slice(top, top + height), slice(left, left + width)


@torch.library.custom_op("firstpage::count_above", mutates_args=())
def _count_above(
    scores: Tensor, bounds: Tensor, positive: Tensor, negative: Tensor, step: list[float]
) -> Tensor:
    """[Q, P, 2]: opaque to the compiler, which would unroll the blocks."""
    shape = Step(*step)
    kinds = torch.stack([positive, negative], dim=2).to(scores.dtype)  # [Q, C, 2]
    counts = scores.new_empty(*bounds.shape, 2)
    with full_precision(scores):
        for rows, columns in _blocks(bounds, scores):
            gap = scores[rows, None, :] - bounds[rows, columns, None]  # [q, p, C]
            counts[rows, columns] = shape.value(gap) @ kinds[rows]
    return counts


@_count_above.register_fake
def _count_above_shape(
    scores: Tensor, bounds: Tensor, positive: Tensor, negative: Tensor, step: list[float]
) -> Tensor:
    return scores.new_empty(*bounds.shape, 2)


@torch.library.custom_op("firstpage::count_above_backward", mutates_args=())
def _count_above_backward(
    gradient: Tensor, scores: Tensor, bounds: Tensor, positive: Tensor, negative: Tensor, step: list[float]
) -> tuple[Tensor, Tensor]:
    """The gradients of scores [Q, C] and bounds [Q, P]."""
    shape = Step(*step)
    kinds = torch.stack([positive, negative], dim=2).to(scores.dtype)  # [Q, C, 2]
    of_scores, of_bounds = torch.zeros_like(scores), torch.empty_like(bounds)
    with full_precision(scores):
        for rows, columns in _blocks(bounds, scores):
            gap = scores[rows, None, :] - bounds[rows, columns, None]  # [q, p, C]
            slope, incoming = shape.derivative(gap), gradient[rows, columns]
            of_scores[rows] += ((slope.mT @ incoming) * kinds[rows]).sum(dim=2)
            of_bounds[rows, columns] = -((slope @ kinds[rows]) * incoming).sum(dim=2)
    return of_scores, of_bounds


@_count_above_backward.register_fake
def _count_above_backward_shapes(
    gradient: Tensor, scores: Tensor, bounds: Tensor, positive: Tensor, negative: Tensor, step: list[float]
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(scores), torch.empty_like(bounds)


class _Context(FunctionCtx):
    """What the forward pass leaves for the backward pass."""

    step: list[float]
    saved_tensors: tuple[Tensor, ...]


def _keep(ctx: _Context, inputs: tuple[Tensor, Tensor, Tensor, Tensor, list[float]], output: Tensor) -> None:
    *tensors, ctx.step = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
    of_scores, of_bounds = _count_above_backward(gradient, *ctx.saved_tensors, ctx.step)
    return of_scores, of_bounds, None, None, None


_count_above.register_autograd(_backward, setup_context=_keep)
