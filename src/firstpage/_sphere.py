"""Vectors of length one: their products and distances, in full precision and with gradients in short form."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F


def full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast does not touch the arithmetic on `tensor`'s device.

    Similarities decide ranks, and bfloat16 has three decimal digits: half of a batch would tie. (It does not
    undo `torch.set_float32_matmul_precision("high")`, by which a user allows TF32 everywhere.)

    >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(torch.ones(2, 2)):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """
    kind = tensor.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # nothing to undo: entering costs 10 µs
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def unit(vectors: Tensor) -> Tensor:
    """Rows scaled to length one. A zero row stays zero, with a finite gradient.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    scaled: Tensor
    scaled, _ = _Unit.apply(vectors) if short(vectors) else _unit_and_length(vectors)  # type: ignore[no-untyped-call]
    return scaled


class Context(FunctionCtx):
    """What a forward pass leaves for the backward pass."""

    saved_tensors: tuple[Tensor, ...]


def short(tensor: Tensor) -> bool:
    """Whether gradients are computed in the short form: not where there are none, and not by `torch.func`.

    A compiler gets the plain formulas, which it differentiates and fuses by itself.
    """
    if torch.compiler.is_compiling():
        return False
    wanted = tensor.requires_grad and torch.is_grad_enabled()
    return wanted and not torch._C._are_functorch_transforms_active()


def _unit_and_length(vectors: Tensor) -> tuple[Tensor, Tensor]:
    # In float64, so that squares neither overflow nor vanish. Apple's GPUs do not have it.
    precise = vectors.dtype if vectors.device.type == "mps" else torch.float64
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True, dtype=precise)
    length = F.threshold(length, 0.0, 1.0).to(vectors.dtype)  # 1 in place of 0
    return vectors / length, length


class _Unit(torch.autograd.Function):
    """u = x/‖x‖ and ‖x‖. The gradient of u is (g − (gᵀu) u)/‖x‖."""

    @staticmethod
    def forward(ctx: Context, vectors: Tensor) -> tuple[Tensor, Tensor]:
        scaled, length = _unit_and_length(vectors)
        ctx.save_for_backward(scaled, length)
        ctx.set_materialize_grads(False)
        return scaled, length

    @staticmethod
    def backward(ctx: Context, of_unit: Tensor | None, of_length: Tensor | None) -> Tensor | None:
        scaled, length = ctx.saved_tensors
        gradient = None
        if of_unit is not None:
            along = (of_unit * scaled).sum(dim=1, keepdim=True)
            gradient = torch.addcmul(of_unit, along, scaled, value=-1).div_(length)
        if of_length is not None:  # only where the gradient is itself differentiated
            gradient = of_length * scaled if gradient is None else gradient + of_length * scaled
        return gradient


def distances(similarity: Tensor) -> Tensor:
    """Euclidean distances of unit vectors from their cosines, as `Pairs.distance` describes.

    >>> distances(torch.tensor([1.0, 0.0, -1.0]))
    tensor([0.0000, 1.4142, 2.0000])
    """
    if short(similarity):
        distance: Tensor = _Distance.apply(similarity)  # type: ignore[no-untyped-call]
        return distance
    squared = squared_distances(similarity)
    apart = squared > 0
    return torch.where(apart, squared, 1.0).sqrt() * apart  # so that 0 has a gradient, which is 0


def squared_distances(similarity: Tensor) -> Tensor:
    """Squares of the distances, 0 where they are no more than rounding.

    >>> squared_distances(torch.tensor([1.0, 0.0, -1.0]))
    tensor([0., 2., 4.])
    """
    blur = 16 * torch.finfo(similarity.dtype).eps
    return F.threshold(torch.rsub(similarity, 2, alpha=2), blur, 0.0)  # 2 − 2s, in one operation


class _Distance(torch.autograd.Function):
    """d = √(2 − 2s), whose gradient is −g/d, and 0 where d is 0."""

    @staticmethod
    def forward(ctx: Context, similarity: Tensor) -> Tensor:
        distance = squared_distances(similarity).sqrt_()
        ctx.save_for_backward(distance)
        return distance

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> Tensor:
        (distance,) = ctx.saved_tensors
        return (gradient / F.threshold(distance, 0.0, torch.inf)).neg_()


def products(left: Tensor, right: Tensor) -> Tensor:
    """The product of every row of `left` with every row of `right`.

    >>> products(torch.eye(2), torch.tensor([[1.0, 2.0]]))
    tensor([[1.],
            [2.]])
    """
    if left is right and short(left):
        own: Tensor = _OwnProducts.apply(left)  # type: ignore[no-untyped-call]
        return own
    return left @ right.T


class _OwnProducts(torch.autograd.Function):
    """UUᵀ, whose gradient is (G + Gᵀ) U: one product in place of the two of U as left and as right side."""

    @staticmethod
    def forward(ctx: Context, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(vectors)
        return vectors @ vectors.T

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> Tensor:
        (vectors,) = ctx.saved_tensors
        with full_precision(vectors):
            # On a CPU, to add a transposed view is as slow as the product that is saved.
            if gradient.device.type == "cpu":
                both = gradient.T.clone(memory_format=torch.contiguous_format).add_(gradient)
            else:
                both = gradient + gradient.T
            return both @ vectors


def scale_gradient(values: Tensor, factor: Tensor | float) -> Tensor:
    """The same values, whose gradient is multiplied by a factor; −1 reverses it.

    >>> values = torch.ones(2, requires_grad=True)
    >>> scaled = scale_gradient(values, torch.tensor([5.0, -1.0]))
    >>> scaled.sum().backward()
    >>> scaled.detach(), values.grad
    (tensor([1., 1.]), tensor([ 5., -1.]))
    """
    constant = values.detach()
    return constant + (values - constant) * factor
