"""The map of the embedding: images near one another on it are similar to the model."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from firstpage.figures.embedding_map import map_positions, plot_embedding_map
from firstpage.report.evaluation import Evaluation
from firstpage.report.markup import Html, tag
from firstpage.report.thumbnails import Thumbnails, data_uri

IMAGES = 1500  # on the map: t-SNE takes seconds for them, and more would not be visible
CELLS, SIDE = 22, 56  # thumbnails along a side, and their pixels


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
