"""Embeddings, checked before they are measured."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["check_labelled", "inverse_lengths"]

_CHUNK = 2**22  # values looked at together, so that a large gallery is never copied


def check_labelled(name: str, vectors: Tensor, labels_name: str, labels: Tensor) -> None:
    """Complain of anything that is not one float vector and one integer label a row, on one device.

    >>> check_labelled("gallery", torch.eye(3), "gallery_labels", torch.arange(2))
    Traceback (most recent call last):
    ValueError: gallery_labels: got shape (2,), need shape (3,): one label per row of gallery
    """
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise ValueError(
            f"{name}: got shape {tuple(vectors.shape)}, need [images, dimensions] with at least one of each"
        )
    if not vectors.is_floating_point():
        raise ValueError(f"{name}: got dtype {vectors.dtype}, need floats: call {name}.float()")
    if labels.shape != vectors.shape[:1]:
        raise ValueError(
            f"{labels_name}: got shape {tuple(labels.shape)}, need shape ({len(vectors)},): "
            f"one label per row of {name}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{labels_name}: got dtype {labels.dtype}, need integers: call {labels_name}.long()")
    if labels.device != vectors.device:
        raise ValueError(
            f"{labels_name} on {labels.device}, {name} on {vectors.device}: "
            f"call {labels_name}.to({str(vectors.device)!r})"
        )


def inverse_lengths(name: str, vectors: Tensor) -> Tensor:
    """[N, 1] what scales each row to length one, in at least float32, without a copy of the rows.

    Raises:
        ValueError: a row holds NaN or infinity, or has no direction because it is zero.

    >>> inverse_lengths("embeddings", torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
    tensor([[0.2000],
            [2.0000]])
    >>> inverse_lengths("embeddings", torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    Traceback (most recent call last):
    ValueError: embeddings: row 1 is zero: it has no direction to compare; leave the image out, or ...
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
            raise ValueError(
                f"{name}: row {row} is zero: it has no direction to compare; "
                "leave the image out, or look for a dead layer"
            )
        raise ValueError(
            f"{name}: row {row} holds NaN or infinity: "
            "the model that made it has diverged, or its image is broken"
        )
    return inverse
