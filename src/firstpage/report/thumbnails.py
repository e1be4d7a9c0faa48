"""Images embedded in the page as thumbnails, each encoded once."""

from __future__ import annotations

import base64
import io

from PIL import Image, features

from firstpage.data.catalog import Catalog
from firstpage.data.decode import decode
from firstpage.report.markup import Html, tag

__all__ = ["Thumbnails", "data_uri"]


def data_uri(image: Image.Image, *, quality: int = 82) -> str:
    """Encode an image as a data URI.

    >>> data_uri(Image.new("RGB", (2, 2))).split(";")[0] in ("data:image/webp", "data:image/png")
    True
    """
    kind = "webp" if features.check("webp") else "png"
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=quality, method=4)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


class Thumbnails:
    """Thumbnails of a catalog's images, decoded on first use.

    Args:
        catalog: The images.
        side: Largest side of a thumbnail in pixels.

    >>> import numpy as np
    >>> from pathlib import Path
    >>> catalog = Catalog("toy", Path("nowhere"), ["a.png"], np.zeros(1, int), ["a"], {})
    >>> Thumbnails(catalog).element(0, "an auk")
    Traceback (most recent call last):
    firstpage.data.decode.Unreadable: nowhere/a.png: no such file
    """

    def __init__(self, catalog: Catalog, side: int = 104) -> None:
        self.catalog, self.side = catalog, side
        self._encoded: dict[int, tuple[str, int, int]] = {}

    def image(self, row: int) -> Image.Image:
        """Return the image of a row, scaled down to the side without cropping."""
        image = decode(self.catalog.path(row), enough=self.side)
        image.thumbnail((self.side, self.side), Image.Resampling.LANCZOS)
        return image

    def element(self, row: int, alt: str) -> Html:
        """Return the image of a row as an `img` element."""
        if row not in self._encoded:
            image = self.image(row)
            self._encoded[row] = (data_uri(image), image.width, image.height)
        source, width, height = self._encoded[row]
        return tag("img", class_="thumb", src=source, width=width, height=height, alt=alt)
