"""Pictures inside the page: small, encoded once, and no file beside it."""

from __future__ import annotations

import base64
import io

import torch
from PIL import Image, features
from torch import Tensor

from firstpage.data.catalog import Catalog
from firstpage.data.decode import decode_image
from firstpage.report.markup import Html, tag

__all__ = ["Album", "data_uri", "pick"]


def data_uri(image: Image.Image, *, quality: int = 82) -> str:
    """A picture as text that stands where an address would.

    >>> data_uri(Image.new("RGB", (2, 2))).split(";")[0] in ("data:image/webp", "data:image/png")
    True
    """
    kind = "webp" if features.check("webp") else "png"
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=quality, method=4)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


class Album:
    """Thumbnails of a catalog's images, read from their files when first asked for.

    Args:
        catalog: the images.
        side: greatest side of a thumbnail.

    >>> from pathlib import Path
    >>> catalog = Catalog("toy", Path("nowhere"), ["a.png"], torch.zeros(1).long().numpy(), ["a"], {})
    >>> Album(catalog).picture(0, "an auk")
    Traceback (most recent call last):
    firstpage.data.decode.Unreadable: nowhere/a.png: no such file
    """

    def __init__(self, catalog: Catalog, side: int = 104) -> None:
        self.catalog, self.side = catalog, side
        self._shown: dict[int, tuple[str, int, int]] = {}

    def thumbnail(self, row: int) -> Image.Image:
        """The image of a row, made small; nothing is cut off, and nothing blown up."""
        image = decode_image(self.catalog.path(row), min_side=self.side)
        image.thumbnail((self.side, self.side), Image.Resampling.LANCZOS)
        return image

    def picture(self, row: int, alt: str) -> Html:
        """The image of a row as an element."""
        if row not in self._shown:
            image = self.thumbnail(row)
            self._shown[row] = (data_uri(image), image.width, image.height)
        source, width, height = self._shown[row]
        return tag("img", class_="thumb", src=source, width=width, height=height, alt=alt)


def pick(scores: Tensor, labels: Tensor, count: int) -> dict[str, list[int]]:
    """Positions of the best, the median and the worst scores, each of another class while there are enough.

    Equal scores are drawn by lot, always the same: in a good model hundreds of queries are perfect.

    >>> pick(torch.tensor([0.0, 50.0, 100.0]), torch.arange(3), 1)
    {'best': [2], 'median': [1], 'worst': [0]}
    """
    lot = torch.randperm(len(scores), generator=torch.Generator().manual_seed(0))
    order = lot[scores.cpu()[lot].argsort(stable=True)]
    middle = (torch.arange(len(order)) - (len(order) - 1) / 2).abs().argsort(stable=True)
    found = {}
    for name, ranked in (("best", order.flip(0)), ("median", order[middle]), ("worst", order)):
        chosen: dict[int, int] = {}
        for position in ranked.tolist():
            chosen.setdefault(int(labels[position]), position)
            if len(chosen) == count:
                break
        found[name] = list(chosen.values())
    return found
