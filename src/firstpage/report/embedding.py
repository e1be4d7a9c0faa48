"""The map of an embedding: near on it is near in the embedding."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from firstpage.figures.embedding_map import map_positions, plot_embedding_map
from firstpage.report.markup import Html, tag
from firstpage.report.measure import Measured
from firstpage.report.pictures import Album, data_uri

MOST = 1500  # images on a map: t-SNE takes seconds for them, and a reader does not see more
CELLS, SIDE = 22, 56


def embedding_map(measured: Measured, album: Album) -> Html:
    """Test images where t-SNE puts them, or PCA where openTSNE is not installed, which it says."""
    subject = measured.subject
    lot = np.random.default_rng(0).permutation(len(subject.queries))[:MOST]
    if len(lot) < 4:
        return tag("p", "Too few images for a map.", class_="note")
    vectors = subject.queries.cpu()[torch.from_numpy(lot)]
    if find_spec("openTSNE") is not None:
        positions, how = map_positions(vectors), "by Barnes–Hut t-SNE"
    else:
        positions = principal_positions(vectors)
        how = "by its two principal components (install firstpage[tsne] for t-SNE)"
    rows = subject.search.queries[lot]
    figure = plot_embedding_map(
        positions,
        album.catalog.labels[rows],
        lambda row: np.asarray(album.thumbnail(int(rows[row]))),
        cells=CELLS,
        side=SIDE,
    )
    sheet = Image.fromarray(np.asarray(figure.axes[0].images[0].get_array()))
    sheet = sheet.crop(sheet.getbbox())  # a map is seldom square
    said = f"{len(lot):,} test images laid out {how}: what the model finds alike lies together"
    picture = tag(
        "img", src=data_uri(sheet, quality=70), width=sheet.width, height=sheet.height, alt=f"{said}."
    )
    return tag("figure", picture, tag("figcaption", f"{said}."), class_="map card")


def principal_positions(vectors: Tensor) -> NDArray[np.float64]:
    """[N, 2]: the plane in which the vectors differ most.

    >>> principal_positions(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.1, 0.0]])).shape
    (3, 2)
    """
    centered = vectors.double() - vectors.double().mean(dim=0)
    left, values, _ = torch.linalg.svd(centered, full_matrices=False)
    found = left[:, :2] * values[:2]
    # One dimension alone makes a line.
    return torch.nn.functional.pad(found, (0, 2 - found.shape[1])).numpy()
