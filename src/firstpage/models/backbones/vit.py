"""Vision transformer as in DINOv2 (Oquab et al., 2023), with timm's key names."""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firstpage.errors import UserError
from firstpage.models.backbones.base import Backbone

PATCH = 14  # pixels a side
MAX_SIZE = 256 * PATCH
EPSILON = 1e-6


def resample_positions(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resample position embeddings [1, 1 + side², C] to another grid: [1, 1 + height·width, C], bicubic.

    The first entry belongs to the class token, which has no position in the grid, and does not change.

    >>> resample_positions(torch.ones(1, 1 + 37 * 37, 8), (16, 12)).shape
    torch.Size([1, 193, 8])
    """
    side = math.isqrt(table.shape[1] - 1)
    if (side, side) == grid:
        return table
    square = table[:, 1:].float().reshape(1, side, side, -1).permute(0, 3, 1, 2)  # [1, C, side, side]
    resampled = F.interpolate(square, size=grid, mode="bicubic", antialias=True)
    return torch.cat([table[:, :1], resampled.flatten(2).transpose(1, 2).to(table.dtype)], dim=1)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, count, width = tokens.shape
        qkv = self.qkv(tokens).reshape(batch, count, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each [B, heads, tokens, width / heads]
        mixed = F.scaled_dot_product_attention(query, key, value)
        output: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, count, width))
        return output


class _LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens * self.gamma


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=EPSILON)
        self.attn = _Attention(width, heads)
        self.ls1 = _LayerScale(width)
        self.norm2 = nn.LayerNorm(width, eps=EPSILON)
        self.mlp = nn.Sequential()
        self.mlp.add_module("fc1", nn.Linear(width, 4 * width))
        self.mlp.add_module("gelu", nn.GELU())
        self.mlp.add_module("fc2", nn.Linear(4 * width, width))
        self.ls2 = _LayerScale(width)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.ls1(self.attn(self.norm1(tokens)))
        output: Tensor = tokens + self.ls2(self.mlp(self.norm2(tokens)))
        return output


class VisionTransformer(Backbone):
    """ViT with 14-pixel patches; its stages end after a third, two thirds and all of the blocks.

    From: Oquab et al., DINOv2: Learning Robust Visual Features without Supervision, 2023, after Dosovitskiy
    et al., An Image is Worth 16×16 Words, ICLR 2021. Only the high stage includes the final norm.

    The published position embeddings are for 518 pixels. They are resampled to `size` when a file is loaded,
    so that training at that size costs no time and is deterministic; for images of any other size they are
    resampled in the forward pass.

    Args:
        width: Channels of a token.
        heads: Number of attention heads.
        depth: Number of blocks, at least 3.
        size: Side of the images in pixels, a multiple of 14.
        checkpointing: See `Backbone`.

    >>> VisionTransformer(width=48, heads=3, depth=3, size=56)(torch.zeros(2, 3, 56, 28)).shape
    torch.Size([2, 9, 48])
    """

    ignored_prefixes = ("head.", "mask_token")

    def __init__(
        self,
        width: int = 384,
        heads: int = 6,
        depth: int = 12,
        size: int = 224,
        checkpointing: bool = False,
    ) -> None:
        super().__init__(checkpointing)
        if not isinstance(size, int) or not PATCH <= size <= MAX_SIZE or size % PATCH:
            nearest = _nearest(min(max(size, PATCH), MAX_SIZE)) if isinstance(size, int) else 224
            raise UserError(
                f"size={size!r}: must be a multiple of {PATCH}, such as {nearest}, and at most {MAX_SIZE}"
            )
        if depth < 3:
            raise UserError(f"depth={depth}: must be at least 3, one block for each stage")
        self.input_size = size
        self.widths = (width, width, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (size // PATCH) ** 2, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, PATCH, stride=PATCH)})
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        for name, parameter in self.named_parameters():
            if name in ("cls_token", "pos_embed") or (name.endswith("weight") and "norm" not in name):
                nn.init.trunc_normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens [B, 1 + patches, width] after a third, two thirds and all of the blocks."""
        height, width = images.shape[2:]
        self.check_size(height, width)
        patches = self.patch_embed["proj"](images).flatten(2).transpose(1, 2)  # [B, patches, C]
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1)
        tokens = tokens + resample_positions(self.pos_embed, (height // PATCH, width // PATCH))
        depth = len(self.blocks)
        outputs = []
        for number, block in enumerate(self.blocks, 1):
            tokens = self.run_block(block, tokens)
            if number in (depth // 3, 2 * depth // 3):
                outputs.append(tokens)
        return outputs[0], outputs[1], self.norm(tokens)

    def check_size(self, height: int, width: int) -> None:
        """Raise a `UserError` unless images of that size consist of whole patches."""
        if height % PATCH or width % PATCH:
            raise UserError(
                f"images of {height}×{width} pixels: each side must be a multiple of {PATCH}, "
                f"such as {_nearest(height)}×{_nearest(width)}"
            )

    def adapt(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Resample the position embeddings of a file to this network's `input_size`."""
        adapted = super().adapt(state)
        table = adapted.get("pos_embed")
        if table is not None and table.ndim == 3 and _has_square_grid(table):
            side = self.input_size // PATCH
            adapted["pos_embed"] = resample_positions(table.float(), (side, side))
        return adapted


def _has_square_grid(table: Tensor) -> bool:
    patches = table.shape[1] - 1
    return patches > 0 and math.isqrt(patches) ** 2 == patches


def _nearest(pixels: int) -> int:
    """The nearest side that is a multiple of the patch size."""
    return max(1, round(pixels / PATCH)) * PATCH
