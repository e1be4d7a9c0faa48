"""Conversion and checks of the embeddings, labels and codes that a user passes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstpage.errors import UserError

ArrayLike = Tensor | NDArray[Any] | Sequence[Any]

_CHUNK = 2**22  # values processed at a time, so that a large gallery is never copied


def as_tensor(name: str, values: ArrayLike) -> Tensor:
    """Convert numbers to a tensor. A tensor is returned as it is; an array shares its memory if possible.

    >>> as_tensor("labels", [3, 1])
    tensor([3, 1])
    >>> as_tensor("labels", ["auk", "wren"])
    Traceback (most recent call last):
    firstpage.errors.UserError: labels: got list, not numbers; give a tensor or an array of numbers
    """
    if isinstance(values, Tensor):
        return values
    try:
        if all(isinstance(value, Tensor) for value in values):
            return torch.stack(list(values))
        array = np.asarray(values)
        native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])  # as torch requires
        return torch.from_numpy(native)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"{name}: got {type(values).__name__}, not numbers; give a tensor or an array of numbers"
        ) from None


def as_vectors(name: str, values: ArrayLike) -> Tensor:
    """Convert vectors to a float tensor [N, D], or raise a `UserError`.

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


def as_labeled_vectors(
    name: str, vectors: ArrayLike, labels_name: str, labels: ArrayLike
) -> tuple[Tensor, Tensor]:
    """Convert vectors [N, D] and their integer labels [N] to tensors on one device, or raise a `UserError`.

    >>> as_labeled_vectors("gallery", torch.eye(3), "gallery_labels", torch.arange(2))
    Traceback (most recent call last):
    firstpage.errors.UserError: gallery_labels: got shape (2,), need shape (3,), one label per row ...
    """
    vectors, labels = as_vectors(name, vectors), as_tensor(labels_name, labels)
    if labels.shape != vectors.shape[:1]:
        raise UserError(
            f"{labels_name}: got shape {tuple(labels.shape)}, need shape ({len(vectors)},), "
            f"one label per row of {name}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(f"{labels_name}: got dtype {labels.dtype}, need integers")
    if labels.device != vectors.device:
        raise UserError(
            f"{labels_name} on {labels.device}, {name} on {vectors.device}; "
            f"call {labels_name}.to({str(vectors.device)!r})"
        )
    return vectors, labels


def inverse_norms(name: str, vectors: Tensor) -> Tensor:
    """Return the reciprocal of each row's norm [N, 1], in at least float32, without copying the rows.

    Raises:
        UserError: A row contains NaN or infinity, or is zero and has no direction.

    >>> inverse_norms("embeddings", torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
    tensor([[0.2000],
            [2.0000]])
    >>> inverse_norms("embeddings", torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    Traceback (most recent call last):
    firstpage.errors.UserError: embeddings: row 1 is zero and has no direction; leave ...
    """
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    rows = max(1, _CHUNK // vectors.shape[1])
    norms = torch.cat(
        [
            torch.linalg.vector_norm(part, dim=1, keepdim=True, dtype=torch.float64)
            for part in torch.split(vectors, rows)
        ]
    )
    inverse = (1 / norms).to(dtype)
    bad = ~(inverse.isfinite() & (inverse > 0)).squeeze(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        if bool(norms[row].isfinite()) and not inverse[row].isfinite():
            raise UserError(
                f"{name}: row {row} is zero and has no direction; "
                "leave the image out, or look for a layer that outputs only zeros"
            )
        raise UserError(
            f"{name}: row {row} holds NaN or infinity; use a model that has not diverged, and check the image"
        )
    return inverse


def as_gallery(
    queries: Tensor, gallery: ArrayLike, gallery_labels: ArrayLike | None
) -> tuple[Tensor, Tensor]:
    """Convert a gallery and its labels to tensors that fit the queries.

    >>> as_gallery(torch.eye(2), torch.eye(3), [0, 1, 2])
    Traceback (most recent call last):
    firstpage.errors.UserError: gallery: 3 dimensions on cpu, embeddings 2 on cpu; embed both with the ...
    """
    if gallery_labels is None:
        raise UserError("gallery_labels=None: a gallery needs gallery_labels, one integer per row")
    gallery, labels = as_labeled_vectors("gallery", gallery, "gallery_labels", gallery_labels)
    if gallery.shape[1] != queries.shape[1] or gallery.device != queries.device:
        raise UserError(
            f"gallery: {gallery.shape[1]} dimensions on {gallery.device}, embeddings "
            f"{queries.shape[1]} on {queries.device}; embed both with the same model, on one device"
        )
    return gallery, labels


def as_codes(
    exclude: ArrayLike | None, gallery_exclude: ArrayLike | None, labels: Tensor, gallery_labels: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Convert codes to tensors; those of queries are -1 and those of the gallery -2 if they are negative.

    >>> as_codes([4, -9], [4, -9], torch.zeros(2), torch.zeros(2))
    (tensor([ 4, -1]), tensor([ 4, -2]))
    """
    if exclude is None:
        return None
    if gallery_exclude is None:
        raise UserError("gallery_exclude=None: give the codes of the gallery, one integer per row, too")
    codes = []
    for name, values, rows, missing in (
        ("exclude", exclude, labels, -1),
        ("gallery_exclude", gallery_exclude, gallery_labels, -2),
    ):
        tensor = as_tensor(name, values)
        if tensor.shape != rows.shape or tensor.is_floating_point():
            raise UserError(
                f"{name}: got {tensor.dtype} of shape {tuple(tensor.shape)}, need {len(rows)} integers"
            )
        tensor = tensor.to(rows.device)
        codes.append(torch.where(tensor < 0, missing, tensor))
    return codes[0], codes[1]
