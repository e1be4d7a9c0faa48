"""A map of the embedding: Barnes–Hut t-SNE with thumbnails (Sampling Wisely, Fig. 6)."""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from firstpage.errors import UserError
from firstpage.figures.style import Style, make_style
from firstpage.pairs import unit

Floats = NDArray[np.float64]
SAME = 1e-6  # smaller differences of coordinates are rounding errors of float32, not worth a map


def map_positions(embeddings: Tensor, *, perplexity: float = 30.0, seed: int = 0) -> Floats:
    """Compute the positions of images on a map by Barnes–Hut t-SNE. Requires the extra `tsne`.

    Neighbors are exact. It runs in one thread, so that the same seed gives the same map; 5,000 images take
    half a minute. If all embeddings are equal, so are all positions.

    Args:
        embeddings: [N, D] embeddings, N ≥ 4.
        perplexity: Approximate number of neighbors to consider; reduced for small N.
        seed: Seed of the initial positions.

    Returns:
        [N, 2] positions.

    >>> import torch
    >>> map_positions(torch.eye(2))
    Traceback (most recent call last):
    firstpage.errors.UserError: embeddings: has 2 rows, but a map needs at least 4
    """
    if len(embeddings) < 4:
        raise UserError(f"embeddings: has {len(embeddings)} rows, but a map needs at least 4")
    try:
        from openTSNE import TSNE
    except ImportError:
        raise UserError("openTSNE is not installed: pip install 'firstpage[tsne]'") from None
    vectors = unit(embeddings.detach().cpu().double()).numpy()
    if np.ptp(vectors, axis=0).max() < SAME:
        return np.zeros((len(vectors), 2))
    positions = TSNE(
        perplexity=min(perplexity, (len(vectors) - 1) / 3),
        negative_gradient_method="bh",
        neighbors="exact",  # searched in blocks
        random_state=seed,
    ).fit(vectors)
    return np.asarray(positions, dtype=np.float64)


def spread_thumbnails(positions: Floats, cells: int = 24) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Select for each cell of a grid over the map the image nearest to its center.

    So thumbnails never overlap, and are within half a cell of their true position.

    Args:
        positions: [N, 2] positions of the images.
        cells: Number of cells along a side of the grid.

    Returns:
        (images [T], cells [T, 2]): the selected images, and the column and row of their cells.

    >>> rows, cell = spread_thumbnails(np.array([[0.0, 0.0], [0.1, 0.1], [1.0, 1.0]]), cells=2)
    >>> rows.tolist(), cell.tolist()
    ([1, 2], [[0, 0], [1, 1]])
    """
    low = positions.min(axis=0)
    side = max(float((positions.max(axis=0) - low).max()), 1e-12)
    scaled = (positions - low) / side * cells
    cell = np.minimum(scaled.astype(np.int64), cells - 1)
    distance = np.square(scaled - (cell + 0.5)).sum(axis=1)
    order = np.lexsort((distance, cell[:, 1], cell[:, 0]))
    _, first = np.unique(cell[order], axis=0, return_index=True)
    rows = order[first]
    return rows, cell[rows]


def plot_embedding_map(
    positions: Floats,
    labels: NDArray[np.int64],
    load_image: Callable[[int], NDArray[np.uint8]] | None = None,
    *,
    cells: int = 24,
    side: int = 64,
    style: Style | None = None,
) -> Figure:
    """Plot the map: thumbnails if there are images to show, or else a point per image in its class's color.

    Colors repeat after a few classes, but still distinguish neighbors on the map.

    Args:
        positions: [N, 2] positions of `map_positions`.
        labels: [N] classes.
        load_image: Function that returns the i-th image, uint8 [h, w, 3].
        cells: Largest number of thumbnails along a side.
        side: Side of a thumbnail in pixels.
        style: Colors. Defaults to those for light pages.

    >>> places = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> figure = plot_embedding_map(places, np.arange(3), lambda row: np.zeros((4, 4, 3), np.uint8), cells=2)
    >>> figure.axes[0].images[0].get_array().shape
    (128, 128, 4)
    """
    style = style or make_style()
    if load_image is None:
        figure, (axes,) = style.panels(height=8.0)
        axes.set_axis_off()
        axes.set_aspect("equal")
        codes = np.unique(labels, return_inverse=True)[1] % len(style.colors)
        axes.scatter(
            positions[:, 0],
            positions[:, 1],
            c=np.array(style.colors)[codes].tolist(),
            s=min(12.0, max(1.0, 6000 / len(labels))),
            linewidths=0,
            rasterized=True,
        )
        return figure
    rows, cell = spread_thumbnails(positions, cells)
    width, height = (cell.max(axis=0) + 1).tolist()  # only the longer side of the map fills the grid
    figure, (axes,) = style.panels(width=16.0 * width / cells, height=16.0 * height / cells)
    axes.set_axis_off()
    sheet = np.zeros((height * side, width * side, 4), np.uint8)  # transparent by default
    for row, (column, line) in zip(rows.tolist(), cell.tolist(), strict=True):
        small = Image.fromarray(load_image(row)).resize((side, side), Image.Resampling.BILINEAR)
        top = (height - 1 - line) * side  # y points up on the map, down in the image
        sheet[top : top + side, column * side : (column + 1) * side, :3] = np.asarray(small)
        sheet[top : top + side, column * side : (column + 1) * side, 3] = 255
    axes.imshow(sheet, interpolation="antialiased")
    return figure
