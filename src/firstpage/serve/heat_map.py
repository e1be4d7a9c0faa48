"""Why two images are similar: how much each part of either adds to their cosine.

With average pooling and a linear head, an embedding before its normalization is the mean of one vector for
each position of the last feature map: z = 1/P Σ A f_i + b = 1/P Σ z_i. The cosine with another embedding y
is then a sum over positions, exactly:

    cos(z, y) = Σ_i ⟨z_i, y⟩ / (P |z| |y|)

This holds for both images, and for the heads of several levels together. For every other pooling or head, the
part of a position is its features times the gradient of ⟨z, y⟩ with respect to them, over |z| |y|: the first
order of the same sum, lengths held constant. A class token looks at the patches of the middle stage; of
several (`model.stages`), only that of the last stage does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from PIL import Image
from torch import Tensor, nn

from firstpage.data.decode import Box
from firstpage.data.framing import Size, as_pair
from firstpage.models.device import use_half
from firstpage.models.embedder import Embedder
from firstpage.models.pooling import Pooling


@dataclass(frozen=True, eq=False)
class HeatMaps:
    """How much each part of two images adds to their cosine.

    Attributes:
        score: Their cosine.
        exact: Whether the parts of each image add up to the score; otherwise they are of first order.
        query: [h, w] The parts of the first image, of the region that the network sees.
        result: [h, w] The parts of the second.
        query_region: That region, as x0, y0, x1, y1 in shares of width and height.
        result_region: That of the second.

    >>> whole = (0, 0, 1, 1)
    >>> maps = HeatMaps(0.5, True, torch.tensor([[0.2, 0.3]]), torch.tensor([[0.5]]), whole, whole)
    >>> round(maps.query.sum().item(), 6) == maps.score
    True
    """

    score: float
    exact: bool
    query: Tensor
    result: Tensor
    query_region: Box
    result_region: Box


def compare_images(model: Embedder, query: Image.Image, result: Image.Image) -> HeatMaps:
    """Return how much each part of two images adds to their cosine.

    Args:
        model: The embedder, in evaluation mode, as `Embedder.load` returns it.
        query: An RGB image.
        result: Another one.

    >>> model = Embedder.create(backbone="small", dim=8, stored=64).eval()
    >>> maps = compare_images(model, Image.new("RGB", (90, 64), "red"), Image.new("RGB", (64, 64), "blue"))
    >>> maps.query.shape, maps.exact, abs(maps.query.sum().item() - maps.score) < 1e-5
    (torch.Size([4, 4]), True, True)
    """
    images = model.prepare([query, result])
    exact = is_exact(model)
    score, levels = (_exact_parts if exact else _gradient_parts)(model, images)
    shapes = [_grid(level.shape[1], as_pair(cast(Size, model.settings.crop))) for level in levels]
    finest = max(shapes)
    total = sum(_spread(level.view(2, *shape), finest) for level, shape in zip(levels, shapes, strict=True))
    maps = cast(Tensor, total).cpu()
    regions = [seen_region(model, image.size) for image in (query, result)]
    return HeatMaps(score, exact, maps[0], maps[1], *regions)


def is_exact(model: Embedder) -> bool:
    """Return whether the cosine of a model's embeddings is a sum over positions.

    >>> is_exact(Embedder.create(backbone="small", dim=8, stored=64, pooling="max"))
    False
    """
    settings = model.settings
    linear = not settings.layer_norm and settings.head != "mlp"
    return linear and settings.pooling == "avg" and settings.stages == 1


def seen_region(model: Embedder, size: tuple[int, int]) -> Box:
    """Return the region of an image that the network sees: x0, y0, x1, y1 in shares of width and height.

    Args:
        model: The embedder, which scales an image and takes the central crop.
        size: Width and height of the image. With padding, the region may be larger than the image.

    >>> model = Embedder.create(backbone="small", dim=8, stored=64, crop=64)
    >>> seen_region(model, (80, 64)), seen_region(model, (64, 640))
    ((0.1, 0.0, 0.9, 1.0), (0.0, 0.45, 1.0, 0.55))
    """
    tall, wide = model.framing.least
    crop = as_pair(cast(Size, model.settings.crop))[::-1]
    scaled, kept = [float(wide), float(tall)], [1.0, 1.0]  # in pixels; shares of the image that they show
    if model.framing.resize == "shorter":
        side, longest = min(size), model.framing.canvas[1]
        scaled = [float(min(round(length * tall / side), longest)) for length in size]
        kept = [min(1.0, longest * side / tall / length) for length in size]
    elif model.framing.resize == "pad":
        factor = min(wide / size[0], tall / size[1])
        kept = [wide / (size[0] * factor), tall / (size[1] * factor)]
    spans = [share * side / whole for share, side, whole in zip(kept, crop, scaled, strict=True)]
    across, down = ((round((1 - span) / 2, 6), round((1 + span) / 2, 6)) for span in spans)
    return across[0], down[0], across[1], down[1]


@torch.no_grad()
def _exact_parts(model: Embedder, images: Tensor) -> tuple[float, list[Tensor]]:
    """Return the cosine of two images, and the parts [2, positions] of each level."""
    vectors: list[Tensor] = []  # of each level: [2, positions, dim]
    for number, features in enumerate(_features(model, images)):
        pooling, *layers = cast(nn.Sequential, model.heads[number % len(model.heads)])
        own = cast(Pooling, pooling).positions(features)
        flat = own.flatten(0, 1)
        for layer in layers:
            flat = layer(flat)
        both = flat.float().view(*own.shape[:2], -1)
        vectors += (
            torch.split(both, list(model.level_dims), dim=2) if model.settings.head == "split" else [both]
        )
    whole = [level.mean(dim=1) for level in vectors]
    scales = _scales(model, whole)
    vectors = [level * scale[:, :, None] for level, scale in zip(vectors, scales, strict=True)]
    whole = [level * scale for level, scale in zip(whole, scales, strict=True)]
    joined = torch.cat(whole, dim=1)
    lengths = joined.norm(dim=1).prod().clamp_min(torch.finfo(torch.float32).tiny)
    parts = [
        torch.einsum("bpd,bd->bp", level, mean.flip(0)) / (level.shape[1] * lengths)
        for level, mean in zip(vectors, whole, strict=True)
    ]
    return float((joined[0] @ joined[1]) / lengths), parts


@torch.enable_grad()
def _gradient_parts(model: Embedder, images: Tensor) -> tuple[float, list[Tensor]]:
    """Return the cosine of two images, and the parts [2, positions] of each level, of first order."""
    features: tuple[Tensor, ...]
    sources: tuple[Tensor, ...]
    if model.settings.pooling == "cls":  # which the last patches do not reach
        stages = model.backbone.stages(images)
        features, sources = stages[-max(len(model.heads), model.settings.stages) :], stages[1:2]
    else:
        features = sources = tuple(part.requires_grad_() for part in _features(model, images))
    levels = model.levels(features)
    scales = _scales(model, [level.detach() for level in levels])
    raw = torch.cat([level * scale for level, scale in zip(levels, scales, strict=True)], dim=1).float()
    lengths = raw.detach().norm(dim=1).prod().clamp_min(torch.finfo(torch.float32).tiny)
    cosine = (raw[0] @ raw[1]) / lengths
    slopes = torch.autograd.grad(cosine, sources)
    pooling = cast(Pooling, cast(nn.Sequential, model.heads[0])[0])
    parts = [
        pooling.positions(slope * level.detach()).sum(dim=2)
        for slope, level in zip(slopes, sources, strict=True)
    ]
    return float(cosine.detach()), parts


@torch.no_grad()
def _features(model: Embedder, images: Tensor) -> tuple[Tensor, ...]:
    """Return what the heads pool, in the precision of `embed`, so that the score is that of a search."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=use_half(images.device)):
        return tuple(part.float() for part in model.features(images))


def _scales(model: Embedder, levels: Sequence[Tensor]) -> list[Tensor]:
    """Return what the vectors of each learner [2, dim] are multiplied by in the embedding: [2, 1] of each."""
    if not model.settings.learners:
        return [torch.ones_like(level[:, :1]) for level in levels]
    tiny = torch.finfo(torch.float32).tiny
    return [level.shape[1] / level.float().norm(dim=1, keepdim=True).clamp_min(tiny) for level in levels]


def _grid(positions: int, crop: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of a map of so many positions, in the shape of the crop."""
    rows = max(1, round((positions * crop[0] / crop[1]) ** 0.5))
    return (rows, positions // rows) if positions % rows == 0 else (1, positions)


def _spread(parts: Tensor, shape: tuple[int, int]) -> Tensor:
    """Spread maps [2, h, w] over a finer grid, so that they keep their sums."""
    for axis, size in zip((1, 2), shape, strict=True):
        coarse = parts.shape[axis]
        source = torch.arange(size, device=parts.device) * coarse // size
        counts = torch.bincount(source, minlength=coarse)
        weights = (1 / counts)[source]
        parts = parts.index_select(axis, source) * (weights[:, None] if axis == 1 else weights)
    return parts
