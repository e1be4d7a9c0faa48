"""A linear head that starts at the principal components of the features of the training images."""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from firstpage.models.embedder import Embedder

MOST = 20_000  # images: the components of more are no better


def start_at_components(
    model: Embedder,
    images: Any,  # noqa: ANN401
    rows: np.ndarray,
    *,
    half: bool | None = None,
    seed: int = 0,
) -> None:
    """Set the head `pca` of a model to the principal components of the features of some images.

    A head of random weights keeps of d features what a random projection to `dim` keeps. Where `dim` is small
    that is little, and at the low learning rate of a pretrained network it is not won back. The principal
    components keep the most that any linear head can, in the sense of variance. The mean is subtracted.

    Args:
        model: The model, on its device.
        images: Stored pixels, or files.
        rows: Row indices of the images; some are drawn if there are many.
        half: Run the network in bfloat16. Defaults to bfloat16 on a GPU and float32 on a CPU.
        seed: Of that draw.

    >>> model = Embedder.create(backbone="small", head="pca", dim=4, stored=48, freeze_batch_norm=True)
    >>> images = list(np.random.default_rng(0).integers(0, 256, (20, 48, 48, 3)).astype(np.uint8))
    >>> start_at_components(model, images, np.arange(20))
    >>> weight = model.heads[0][-1].weight
    >>> torch.allclose(weight @ weight.T, torch.eye(4), atol=1e-5)
    True
    """
    if len(rows) > MOST:
        rows = np.sort(np.random.default_rng(seed).choice(rows, MOST, replace=False))
    layers = list(cast(nn.Sequential, model.heads[0]))
    linear = next(layer for layer in layers if isinstance(layer, nn.Linear))
    before = nn.Sequential(*layers[: layers.index(linear)])
    mean, covariance = _moments(model, before, images, rows, half)
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
) -> tuple[Tensor, Tensor]:
    """Return mean [d] and covariance [d, d] of what the head's linear layer gets, in float64."""
    device, was_training = model.device, model.training
    half = device.type == "cuda" if half is None else half
    total, products = torch.zeros((), device=device), torch.zeros((), device=device)
    model.eval()
    try:
        with torch.inference_mode():
            for network_input in model.inputs(images, rows):
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    features = before(model.features(network_input)[0])
                features = features.double()
                total = total + features.sum(dim=0)
                products = products + features.T @ features
    finally:
        model.train(was_training)
    mean = total.clone() / len(rows)  # a normal tensor again
    return mean, products.clone() / len(rows) - mean.outer(mean)
