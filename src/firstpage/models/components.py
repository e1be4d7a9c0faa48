"""A linear head that starts at the principal components of the features of the training images."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from firstpage.errors import UserError
from firstpage.models.device import use_half
from firstpage.models.embedder import Embedder

MOST_IMAGES = 20_000  # ten for each feature of a ResNet-50


def component_rows(rows: np.ndarray, seed: int) -> np.ndarray:
    """Return the rows of the images whose components are taken: all, or some if there are very many.

    >>> component_rows(np.arange(3), seed=0), len(component_rows(np.arange(1_000_000), seed=0))
    (array([0, 1, 2]), 20000)
    """
    if len(rows) <= MOST_IMAGES:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, MOST_IMAGES, replace=False))


def start_at_components(
    model: Embedder,
    images: Any,  # noqa: ANN401
    rows: np.ndarray,
    *,
    half: bool | None = None,
    advance: Callable[[int], None] | None = None,
) -> None:
    """Set the head `pca` of a model to the principal components of the features of some images.

    Random weights project the features at random: of a few dimensions, that keeps little of what a pretrained
    network knows. The principal components are the projection that keeps the most of the features' variance.
    Their mean is subtracted.

    Args:
        model: The model, on its device.
        images: Stored pixels, or files.
        rows: Row indices of the images.
        half: Run the network in bfloat16. Defaults to where that is fast; see `use_half`.
        advance: Called with the number of images of each batch.

    Raises:
        UserError: The head is another one.

    >>> model = Embedder.create(backbone="small", head="pca", dim=4, stored=48, freeze_batch_norm=True)
    >>> images = list(np.random.default_rng(0).integers(0, 256, (20, 48, 48, 3)).astype(np.uint8))
    >>> start_at_components(model, images, np.arange(20))
    >>> weight = model.heads[0][-1].weight
    >>> torch.allclose(weight @ weight.T, torch.eye(4), atol=1e-5)
    True
    """
    if model.settings.head != "pca":
        raise UserError(f"model.head={model.settings.head!r}: only a head 'pca' starts at components")
    layers = list(cast(nn.Sequential, model.heads[0]))
    linear = next(layer for layer in layers if isinstance(layer, nn.Linear))
    before = nn.Sequential(*layers[: layers.index(linear)])
    mean, covariance = _moments(model, before, images, rows, half, advance)
    ascending = torch.linalg.eigh(covariance).eigenvectors.T
    components = ascending.flip(0)[: linear.out_features]
    with torch.no_grad():
        linear.weight.copy_(components)
        linear.bias.copy_(-(components @ mean))


def _moments(
    model: Embedder,
    before: nn.Module,
    images: Any,  # noqa: ANN401
    rows: np.ndarray,
    half: bool | None,
    advance: Callable[[int], None] | None,
) -> tuple[Tensor, Tensor]:
    """Return mean [d] and covariance [d, d] of what the head's linear layer gets, in float64."""
    device, was_training = model.device, model.training
    half = use_half(device, half)
    total, products = torch.zeros((), device=device), torch.zeros((), device=device)
    model.eval()
    try:
        with torch.no_grad():
            for network_input in model.inputs(images, rows):
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    features = before(model.pooled(model.features(network_input)))
                features = features.double()
                total = total + features.sum(dim=0)
                products = products + features.T @ features
                if advance is not None:
                    advance(len(features))
    finally:
        model.train(was_training)
    mean = total / len(rows)
    return mean, products / len(rows) - mean.outer(mean)
