"""Images of the page: thumbnails, and the map of the embedding."""

import base64
import io
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, features
from torch import Tensor

from firstpage.data.catalog import Catalog
from firstpage.data.decode import decode_image
from firstpage.figures.embedding_map import map_positions, plot_embedding_map
from firstpage.report.evaluation import Evaluation
from firstpage.report.markup import Html, tag

IMAGES = 1500  # on the map: t-SNE takes seconds for them, and more would not be visible
CELLS, SIDE = 22, 56  # thumbnails along a side of the map, and their pixels


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
        image = decode_image(self.catalog.path(row), min_side=self.side)
        image.thumbnail((self.side, self.side), Image.Resampling.LANCZOS)
        return image

    def element(self, row: int, alt: str) -> Html:
        """Return the image of a row as an `img` element."""
        if row not in self._encoded:
            image = self.image(row)
            self._encoded[row] = (data_uri(image), image.width, image.height)
        source, width, height = self._encoded[row]
        return tag("img", class_="thumb", src=source, width=width, height=height, alt=alt)


def render_map(evaluation: Evaluation, thumbnails: Thumbnails) -> Html:
    """Show test images at their positions by t-SNE, or by PCA if openTSNE is not installed."""
    test = evaluation.test
    sample = np.random.default_rng(0).permutation(len(test.queries))[:IMAGES]
    if len(sample) < 4:
        return tag("p", "Too few images for a map.", class_="note")
    vectors = test.queries.cpu()[torch.from_numpy(sample)]
    if find_spec("openTSNE") is not None:
        positions, method = map_positions(vectors), "by Barnes–Hut t-SNE"
    else:
        positions = principal_positions(vectors)
        method = "by its two principal components (install firstpage[tsne] for t-SNE)"
    rows = test.rows.queries[sample]
    figure = plot_embedding_map(
        positions,
        thumbnails.catalog.labels[rows],
        lambda position: np.asarray(thumbnails.image(int(rows[position]))),
        cells=CELLS,
        side=SIDE,
    )
    sheet = Image.fromarray(np.asarray(figure.axes[0].images[0].get_array()))
    sheet = sheet.crop(sheet.getbbox())  # a map is rarely square
    caption = (
        f"{len(sample):,} test images laid out {method}: images similar to the model are close together."
    )
    source = data_uri(sheet, quality=70)
    image = tag("img", src=source, width=sheet.width, height=sheet.height, alt=caption)
    return tag("figure", image, tag("figcaption", caption), class_="map card")


def principal_positions(vectors: Tensor) -> NDArray[np.float64]:
    """Return [N, 2] coordinates of the vectors along their two principal components.

    >>> principal_positions(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.1, 0.0]])).shape
    (3, 2)
    """
    centered = vectors.double() - vectors.double().mean(dim=0)
    left, values, _ = torch.linalg.svd(centered, full_matrices=False)
    positions = left[:, :2] * values[:2]
    # Vectors of one dimension lie on a line.
    return torch.nn.functional.pad(positions, (0, 2 - positions.shape[1])).numpy()
