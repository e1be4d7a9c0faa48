"""Augmentation of a batch on its device: crop, flip, color jitter, normalization."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from firstpage.data.framing import Size, as_pair
from firstpage.data.pixel_batch import PixelBatch
from firstpage.errors import UserError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_TRIES = 10  # boxes drawn for a resized crop before it falls back to the center, as torchvision does
_AHEAD = 16  # steps that are planned at a time
_GRAY = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow's


@dataclass(frozen=True)
class Augment:
    """Turns a batch of stored pixels into the input of a network, on the device of the batch.

    Every sample has its own random crop, flip and colors. They depend only on `(seed, step)` and the position
    of the sample in the batch and are generated on the CPU, so that CPU and GPU agree, a step can be repeated
    exactly, and no random state has to be saved. The parameters of several steps are sent to the device in
    one small asynchronous copy.

    Crops:

    - `"center"`: the center, not random (test).
    - `"random"`: a window of `size` at a random position in whole pixels, without resampling.
    - `"resized"`: RandomResizedCrop. A window of `scale` of the image's area and `ratio` width to height (its
      logarithm uniform), resized to `size`; after ten tries, the largest central window of allowed ratio.
      Bilinear without antialiasing: from a store of 256 pixels to 224–227 pixels a window is enlarged, or
      reduced by at most 1.7, where antialiasing makes no visible difference. Reducing by more than 2 would
      cause aliasing: build a smaller store instead.

    Color jitter is `(brightness, contrast, saturation, hue)`: each of the first three is a factor in
    `1 ± value`, hue a shift of at most `value` (of a full turn, up to 0.5), applied in this order.

    Args:
        size: Side of the output, or its height and width.
        crop: `"center"`, `"random"` or `"resized"`.
        scale: Minimum and maximum share of the area, for `"resized"`.
        ratio: Minimum and maximum width / height, for `"resized"`.
        flip: Probability of a horizontal flip.
        jitter: Strengths of the color jitter.
        mean: Mean of each channel, for pixels in 0..1.
        std: Standard deviation of each channel, for pixels in 0..1.
        fused: Compile the device's part into one kernel with `torch.compile`: a GPU then writes each pixel
            once.

    >>> pixels = torch.randint(256, (4, 256, 256, 3), dtype=torch.uint8)
    >>> images = Augment.train(size=224, crop="resized")(pixels, seed=0, step=1)
    >>> images.shape, images.dtype, images.is_contiguous(memory_format=torch.channels_last)
    (torch.Size([4, 3, 224, 224]), torch.float32, True)
    >>> Augment.test(size=224)(pixels).shape
    torch.Size([4, 3, 224, 224])
    """

    size: Size = 227
    crop: Literal["center", "random", "resized"] = "center"
    scale: tuple[float, float] = (0.16, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    fused: bool = False

    def __post_init__(self) -> None:
        scale, ratio, jitter = self.scale, self.ratio, self.jitter
        fits = len(jitter) == 4 and min(jitter) >= 0 and jitter[3] <= 0.5
        for name, holds, remedy in (
            ("size", min(as_pair(self.size)) >= 1, "must be at least 1"),
            ("crop", self.crop in ("center", "random", "resized"), "must be center, random or resized"),
            ("scale", 0 < scale[0] <= scale[1] <= 1, "must satisfy 0 < minimum <= maximum <= 1"),
            ("ratio", 0 < ratio[0] <= ratio[1], "must satisfy 0 < minimum <= maximum"),
            ("flip", 0 <= self.flip <= 1, "must be in 0..1"),
            ("jitter", fits, "must be four values >= 0, hue at most 0.5"),
            ("std", min(self.std) > 0, "must be positive"),
        ):
            if not holds:
                raise UserError(f"Augment({name}={getattr(self, name)!r}): {remedy}")

    @classmethod
    def train(
        cls,
        size: Size = 227,
        crop: Literal["random", "resized"] = "random",
        *,
        scale: tuple[float, float] = (0.16, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
    ) -> Self:
        """Return the augmentation of training: random crops and flips.

        >>> Augment.train(size=224, jitter=(0.2, 0.2, 0.2, 0.0)).flip
        0.5
        """
        return cls(size, crop, scale, ratio, flip, jitter, mean, std)

    @classmethod
    def test(
        cls,
        size: Size = 227,
        *,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
    ) -> Self:
        """Return the preprocessing of tests: the center crop.

        >>> Augment.test(size=224).crop
        'center'
        """
        return cls(size, mean=mean, std=std)

    def __call__(
        self,
        pixels: PixelBatch | Tensor,
        *,
        seed: int | None = None,
        step: int | None = None,
        first: int = 0,
    ) -> Tensor:
        """Augment a batch.

        Args:
            pixels: A batch of a store, or images of one size: uint8 `[B, H, W, 3]`. On any device.
            seed: Seed of the run. Required, like `step`, if anything is random.
            step: Step of the run, counted across epochs.
            first: Position of the first sample in the global batch, so that the slice of a rank gets the same
                augmentation as in one process.

        Returns:
            `[B, 3, size, size]` float32 in channels-last memory format, on the device of `pixels`.
        """
        if not isinstance(pixels, PixelBatch):
            pixels = PixelBatch(pixels, pixels[:0], tuple(pixels.shape[1:3]))  # type: ignore[arg-type]
        canvas, least = pixels.pixels, pixels.least
        if canvas.dtype != torch.uint8 or canvas.ndim != 4 or canvas.shape[3] != 3:
            raise UserError(
                f"Augment(pixels {canvas.dtype} {list(canvas.shape)}): must be torch.uint8 [B, H, W, 3]"
            )
        height, width = least
        tall, wide = as_pair(self.size)
        sizes = None if least == canvas.shape[1:3] else pixels.sizes  # unless all images fill their canvas
        if self.crop != "resized" and (height < tall or width < wide):
            raise UserError(
                f"Augment(size={self.size}): the images are {width} × {height}; "
                "use a smaller size, a larger store or crop='resized'"
            )
        render = _fused_render() if self.fused else _render
        return render(canvas, sizes, self._plan(len(canvas), canvas.device, seed, step, first), self)

    def _plan(
        self, batch: int, device: torch.device, seed: int | None, step: int | None, first: int
    ) -> dict[str, Tensor]:
        """Return the parameters of each sample, on the device: window, flip, jitter, normalization."""
        if self.crop == "center" and not self.flip and not any(self.jitter):
            seed, step = 0, 0  # the random numbers are not used
        if seed is None or step is None:
            raise UserError(f"Augment(seed={seed}, step={step}): a random augmentation needs both")
        # A power of two, so that the chunks of a large batch share a few plans.
        upto = 1 << (first + batch - 1).bit_length() if first + batch else 0
        block = _planned(self, seed, step // _AHEAD, upto, device)
        return {name: parts[step % _AHEAD, first : first + batch] for name, parts in block.items()}


@lru_cache(maxsize=64)
def _planned(augment: Augment, seed: int, block: int, batch: int, device: torch.device) -> dict[str, Tensor]:
    """Return the plans `[_AHEAD, B, …]` of a block of steps, which share many small operations."""
    steps = range(block * _AHEAD, (block + 1) * _AHEAD)
    draws = torch.cat([_uniform(seed, step, batch) for step in steps])
    rows = len(draws)
    strength = torch.tensor(augment.jitter, dtype=draws.dtype)
    low, high = (1 - strength).clamp(min=0), 1 + strength
    low[3], high[3] = -strength[3], strength[3]
    mean, std = torch.tensor(augment.mean), torch.tensor(augment.std)
    parts = {
        "place": draws[:, :2],
        "flip": draws[:, 2:3] < augment.flip,
        "jitter": low + draws[:, 3:7] * (high - low),
        "gain": (1 / (255 * std)).expand(rows, 3),
        "bias": (-mean / std).expand(rows, 3),
        "tries": _relative_sides(draws[:, 7:].reshape(rows, 2, _TRIES), augment.scale, augment.ratio),
    }
    packed = torch.cat([part.float() for part in parts.values()], dim=1)
    if device.type == "cuda":
        packed = packed.pin_memory()  # otherwise the host would wait for the copy
    widths = [part.shape[1] for part in parts.values()]
    moved = packed.to(device, non_blocking=True).view(_AHEAD, batch, sum(widths))
    return dict(zip(parts, moved.split_with_sizes(widths, dim=2), strict=True))


def _render(pixels: Tensor, sizes: Tensor | None, plan: dict[str, Tensor], augment: Augment) -> Tensor:
    """Apply a plan: float32 `[B, 3, size, size]`, channels last."""
    shape = as_pair(augment.size)
    _, height, width, _ = pixels.shape
    if augment.crop == "center" and not augment.flip and sizes is None:
        top, left = _middle(height, shape[0]), _middle(width, shape[1])
        images = pixels[:, top : top + shape[0], left : left + shape[1]].permute(0, 3, 1, 2).float()
    else:
        if sizes is None:
            whole = pixels.new_ones(len(pixels), 1, dtype=torch.float32)
            sizes = torch.cat([height * whole, width * whole], dim=1)
        window = _windows(plan, sizes.float(), augment)
        sample = _resize if augment.crop == "resized" else _copy
        images = sample(pixels, sizes, window, plan["flip"], shape)
    if any(augment.jitter):
        images = 255 * _jitter(images / 255, plan["jitter"], augment.jitter)
    images = images * plan["gain"][:, :, None, None] + plan["bias"][:, :, None, None]
    return images.contiguous(memory_format=torch.channels_last)


@cache
def _fused_render() -> Callable[..., Tensor]:
    """Return the compiled `_render`; made when first needed, as importing torch's compiler takes seconds."""
    return torch.compile(_render)


def _middle(length: int, size: int) -> int:
    return round((length - size) / 2)


def _uniform(seed: int, step: int, batch: int) -> Tensor:
    """Return uniform random numbers, always equally many per sample, whatever the settings."""
    digest = hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest))
    return torch.rand(batch, 7 + 2 * _TRIES, generator=generator, dtype=torch.float64)


def _relative_sides(tries: Tensor, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Return heights and widths `[B, 2 · tries]` of windows, relative to the root of the image's area."""
    area = scale[0] + tries[:, 0] * (scale[1] - scale[0])  # [B, tries]
    shape = torch.exp(math.log(ratio[0]) + tries[:, 1] * math.log(ratio[1] / ratio[0]))
    return torch.cat([(area / shape).sqrt(), (area * shape).sqrt()], dim=1)


def _windows(plan: dict[str, Tensor], sizes: Tensor, augment: Augment) -> Tensor:
    """Return the window of each image, in its own pixels: `[B, 4]` (top, left, height, width)."""
    if augment.crop == "resized":
        return _resized_windows(plan["tries"], plan["place"], sizes, augment.ratio)
    tall, wide = as_pair(augment.size)
    room = torch.stack([sizes[:, 0] - tall, sizes[:, 1] - wide], dim=1)
    corner = (plan["place"] * (room + 1)).floor() if augment.crop == "random" else (room / 2).round()
    return torch.cat(
        [corner, torch.ones_like(corner[:, :1]) * tall, torch.ones_like(corner[:, :1]) * wide], 1
    )


def _resized_windows(tries: Tensor, place: Tensor, sizes: Tensor, ratio: tuple[float, float]) -> Tensor:
    """Return windows `[B, 4]` by torchvision's rule, for all tries at once."""
    root = (sizes[:, 0] * sizes[:, 1]).sqrt()
    sides = (tries.view(-1, 2, _TRIES) * root[:, None, None]).round()  # [B, 2, tries]
    fits = ((sides >= 1) & (sides <= sizes[:, :, None])).all(dim=1)  # [B, tries]
    first = fits.int().argmax(dim=1)[:, None, None].expand(-1, 2, 1)
    chosen = sides.gather(2, first).squeeze(2)
    limits = torch.stack([sizes[:, 1] / ratio[0], sizes[:, 0] * ratio[1]], dim=1).round()
    found = fits.any(dim=1, keepdim=True)
    sides = torch.where(found, chosen, torch.minimum(sizes, limits))
    corner = torch.where(found, place * (sizes - sides + 1), (sizes - sides) / 2).floor()
    return torch.cat([corner, sides], dim=1)


def _columns(flip: Tensor, width: int) -> Tensor:
    """Return the output columns 0..width-1 of each sample, reversed if it is flipped: `[B, width]`."""
    column = torch.arange(width, device=flip.device)
    return torch.where(flip > 0, width - 1 - column, column)


def _on_canvas(rows: Tensor, columns: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
    """Return where on their canvas pixels of images are: each `[B, height, width]`; see `PixelBatch`.

    Args:
        rows: `[B, height]` of the images.
        columns: `[B, width]` of the images.
        turned: `[B]` Whether an image lies on its side.
    """
    rows, columns = rows[:, :, None], columns[:, None, :]
    turned = turned[:, None, None]
    return torch.where(turned, columns, rows), torch.where(turned, rows, columns)


def _copy(pixels: Tensor, sizes: Tensor, window: Tensor, flip: Tensor, shape: tuple[int, int]) -> Tensor:
    """Copy windows at whole pixels: float32 `[B, 3, *shape]` with values 0..255."""
    batch, height, width, _ = pixels.shape
    corner = window.long()
    rows = corner[:, 0:1] + torch.arange(shape[0], device=pixels.device)
    y, x = _on_canvas(rows, corner[:, 1:2] + _columns(flip, shape[1]), sizes[:, 0] > height)
    place = (torch.arange(batch, device=pixels.device)[:, None, None] * height + y) * width + x
    copied = pixels.reshape(-1, 3).index_select(0, place.flatten())
    return copied.view(batch, *shape, 3).permute(0, 3, 1, 2).float()


def _resize(pixels: Tensor, sizes: Tensor, window: Tensor, flip: Tensor, shape: tuple[int, int]) -> Tensor:
    """Resize windows bilinearly, as if cropped first: float32 `[B, 3, *shape]` with values 0..255."""
    _, height, width, _ = pixels.shape
    top, left, tall, wide = window[:, :, None].unbind(dim=1)  # each [B, 1]
    row = torch.arange(shape[0], device=pixels.device)
    rows = top + (((row + 0.5) * tall / shape[0] - 0.5).clamp(min=0)).minimum(tall - 1)  # pixel centers
    column = _columns(flip, shape[1])
    columns = left + (((column + 0.5) * wide / shape[1] - 0.5).clamp(min=0)).minimum(wide - 1)
    y, x = _on_canvas(rows, columns, sizes[:, 0] > height)
    # grid_sample counts from -1 to 1 between the outer edges.
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=3)
    return F.grid_sample(
        pixels.permute(0, 3, 1, 2).float(), grid, mode="bilinear", padding_mode="border", align_corners=False
    )


def _jitter(images: Tensor, factors: Tensor, strength: tuple[float, float, float, float]) -> Tensor:
    """Jitter brightness, contrast, saturation and hue of images in 0..1, unless their strength is 0."""
    brightness, contrast, saturation, hue = factors[:, :, None, None, None].unbind(dim=1)  # each [B, 1, 1, 1]
    if strength[0]:
        images = (images * brightness).clamp(0, 1)
    if strength[1]:
        images = torch.lerp(_gray(images).mean(dim=(2, 3), keepdim=True), images, contrast).clamp(0, 1)
    if strength[2]:
        images = torch.lerp(_gray(images), images, saturation).clamp(0, 1)
    return _shift_hue(images, hue) if strength[3] else images


def _gray(images: Tensor) -> Tensor:
    red, green, blue = (images[:, channel : channel + 1] for channel in range(3))
    return _GRAY[0] * red + _GRAY[1] * green + _GRAY[2] * blue


def _shift_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue of every pixel, without changing its value and chroma (HSV)."""
    red, green, blue = (images[:, channel : channel + 1] for channel in range(3))
    value = images.amax(dim=1, keepdim=True)
    chroma = value - images.amin(dim=1, keepdim=True)
    safe = chroma.clamp(min=1e-12)
    sector = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    # Red, green and blue each fall from value to value - chroma as the hue moves away from them.
    places = [(sextants + sector + 6 * turn) % 6 for sextants in (5, 3, 1)]
    return torch.cat([value - chroma * torch.minimum(at, 4 - at).clamp(0, 1) for at in places], dim=1)
