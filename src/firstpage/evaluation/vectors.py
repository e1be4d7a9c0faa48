"""Embeddings, checked before they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstpage.errors import UserError

__all__ = ["Numbers", "as_labeled", "as_tensor", "as_vectors", "inverse_lengths"]

Numbers = Tensor | NDArray[Any] | Sequence[Any]  # what `torch.as_tensor` takes

_CHUNK = 2**22  # values looked at together, so that a large gallery is never copied


def as_tensor(name: str, values: Numbers) -> Tensor:
    """A tensor of numbers given in any way; a tensor is itself, and an array shares its memory if it can.

    >>> as_tensor("labels", [3, 1])
    tensor([3, 1])
    >>> as_tensor("labels", ["auk", "wren"])
    Traceback (most recent call last):
    firstpage.errors.UserError: labels: got list, not numbers: give a tensor or an array of numbers
    """
    if isinstance(values, Tensor):
        return values
    try:
        if all(isinstance(value, Tensor) for value in values):
            return torch.stack(list(values))
        array = np.asarray(values)
        native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])  # as torch wants it
        return torch.from_numpy(native)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"{name}: got {type(values).__name__}, not numbers: give a tensor or an array of numbers"
        ) from None


def as_vectors(name: str, values: Numbers) -> Tensor:
    """[N, D] float vectors as a tensor, or a complaint.

    >>> as_vectors("embeddings", [1.0, 2.0])
    Traceback (most recent call last):
    firstpage.errors.UserError: embeddings: got shape (2,), need [images, dimensions] with at least ...
    """
    vectors = as_tensor(name, values)
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise UserError(
            f"{name}: got shape {tuple(vectors.shape)}, need [images, dimensions] with at least one of each"
        )
    if not vectors.is_floating_point():
        raise UserError(f"{name}: got dtype {vectors.dtype}, need floats")
    return vectors


def as_labeled(name: str, vectors: Numbers, labels_name: str, labels: Numbers) -> tuple[Tensor, Tensor]:
    """One float vector and one integer label a row, on one device, as tensors, or a complaint.

    >>> as_labeled("gallery", torch.eye(3), "gallery_labels", torch.arange(2))
    Traceback (most recent call last):
    firstpage.errors.UserError: gallery_labels: got shape (2,), need shape (3,): one label per row of gallery
    """
    vectors, labels = as_vectors(name, vectors), as_tensor(labels_name, labels)
    if labels.shape != vectors.shape[:1]:
        raise UserError(
            f"{labels_name}: got shape {tuple(labels.shape)}, need shape ({len(vectors)},): "
            f"one label per row of {name}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(f"{labels_name}: got dtype {labels.dtype}, need integers")
    if labels.device != vectors.device:
        raise UserError(
            f"{labels_name} on {labels.device}, {name} on {vectors.device}: "
            f"call {labels_name}.to({str(vectors.device)!r})"
        )
    return vectors, labels


def inverse_lengths(name: str, vectors: Tensor) -> Tensor:
    """[N, 1] what scales each row to length one, in at least float32, without a copy of the rows.

    Raises:
        UserError: a row holds NaN or infinity, or has no direction because it is zero.

    >>> inverse_lengths("embeddings", torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
    tensor([[0.2000],
            [2.0000]])
    >>> inverse_lengths("embeddings", torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    Traceback (most recent call last):
    firstpage.errors.UserError: embeddings: row 1 is zero: it has no direction to compare; leave ...
    """
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    rows = max(1, _CHUNK // vectors.shape[1])
    lengths = torch.cat(
        [
            torch.linalg.vector_norm(part, dim=1, keepdim=True, dtype=torch.float64)
            for part in torch.split(vectors, rows)
        ]
    )
    inverse = (1 / lengths).to(dtype)
    bad = ~(inverse.isfinite() & (inverse > 0)).squeeze(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        if bool(lengths[row].isfinite()) and not inverse[row].isfinite():
            raise UserError(
                f"{name}: row {row} is zero: it has no direction to compare; "
                "leave the image out, or look for a dead layer"
            )
        raise UserError(
            f"{name}: row {row} holds NaN or infinity: "
            "the model that made it has diverged, or its image is broken"
        )
    return inverse
