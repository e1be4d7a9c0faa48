"""The embedding as a map: Barnes–Hut t-SNE with thumbnails (Sampling Wisely, Fig. 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from firstpage.errors import UserError
from firstpage.figures.style import Style, style
from firstpage.pairs import unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["map_positions", "plot_embedding_map", "spread_thumbnails"]

Floats = NDArray[np.float64]
SAME = 1e-6  # coordinates that differ by less differ by the rounding of float32: a map of it says nothing


def map_positions(embeddings: Tensor, *, perplexity: float = 30.0, seed: int = 0) -> Floats:
    """[N, 2]: where Barnes–Hut t-SNE puts each image. Needs the extra `tsne`.

    Neighbors are exact. One thread, so that a seed gives one map; 5,000 images take half a minute.
    Embeddings that are all the same lie in one place.

    Args:
        embeddings: [N, D], at least 4 of them.
        perplexity: about how many neighbors count; fewer where there are few images.
        seed: of the start.

    >>> import torch
    >>> map_positions(torch.eye(2))
    Traceback (most recent call last):
    firstpage.errors.UserError: embeddings: 2 rows: a map needs at least 4
    """
    if len(embeddings) < 4:
        raise UserError(f"embeddings: {len(embeddings)} rows: a map needs at least 4")
    try:
        from openTSNE import TSNE
    except ImportError:
        raise UserError("openTSNE is not installed: pip install 'firstpage[tsne]'") from None
    vectors = unit(embeddings.detach().cpu().double()).numpy()
    if np.ptp(vectors, axis=0).max() < SAME:
        return np.zeros((len(vectors), 2))
    found = TSNE(
        perplexity=min(perplexity, (len(vectors) - 1) / 3),
        negative_gradient_method="bh",
        neighbors="exact",  # searched in blocks
        random_state=seed,
    ).fit(vectors)
    return np.asarray(found, dtype=np.float64)


def spread_thumbnails(positions: Floats, cells: int = 24) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which images to show, and where: in each cell of a grid over the map, the one nearest its center.

    So thumbnails never overlap, and stand within half a cell of their true place.

    Args:
        positions: [N, 2].
        cells: of the grid's side.

    Returns:
        (rows [T], cells [T, 2] as column and row of the grid).

    >>> rows, cell = spread_thumbnails(np.array([[0.0, 0.0], [0.1, 0.1], [1.0, 1.0]]), cells=2)
    >>> rows.tolist(), cell.tolist()
    ([1, 2], [[0, 0], [1, 1]])
    """
    low = positions.min(axis=0)
    side = max(float((positions.max(axis=0) - low).max()), 1e-12)
    scaled = (positions - low) / side * cells
    cell = np.minimum(scaled.astype(np.int64), cells - 1)
    away = np.square(scaled - (cell + 0.5)).sum(axis=1)
    order = np.lexsort((away, cell[:, 1], cell[:, 0]))
    _, first = np.unique(cell[order], axis=0, return_index=True)
    rows = order[first]
    return rows, cell[rows]


def plot_embedding_map(
    positions: Floats,
    labels: NDArray[np.int64],
    picture: Callable[[int], NDArray[np.uint8]] | None = None,
    *,
    cells: int = 24,
    side: int = 64,
    look: Style | None = None,
) -> Figure:
    """The map: thumbnails where there are pictures to show, else a point an image in its class's color.

    Colors repeat after a few classes; neighbors on the map still tell apart by them.

    Args:
        positions: [N, 2] of `map_positions`.
        labels: [N] classes.
        picture: the image of a row, uint8 [h, w, 3].
        cells: thumbnails along a side at most.
        side: pixels of a thumbnail.
        look: light or dark.

    >>> places = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> figure = plot_embedding_map(places, np.arange(3), lambda row: np.zeros((4, 4, 3), np.uint8), cells=2)
    >>> figure.axes[0].images[0].get_array().shape
    (128, 128, 4)
    """
    look = look or style()
    if picture is None:
        figure, (axes,) = look.panels(height=8.0)
        axes.set_axis_off()
        axes.set_aspect("equal")
        codes = np.unique(labels, return_inverse=True)[1] % len(look.colors)
        axes.scatter(
            positions[:, 0],
            positions[:, 1],
            c=np.array(look.colors)[codes].tolist(),
            s=min(12.0, max(1.0, 6000 / len(labels))),
            linewidths=0,
            rasterized=True,
        )
        return figure
    from PIL import Image

    rows, places = spread_thumbnails(positions, cells)
    across, up = (places.max(axis=0) + 1).tolist()  # the map's longer side fills the grid, the other may not
    figure, (axes,) = look.panels(width=16.0 * across / cells, height=16.0 * up / cells)
    axes.set_axis_off()
    sheet = np.zeros((up * side, across * side, 4), np.uint8)  # clear where there is nothing
    for row, (column, line) in zip(rows.tolist(), places.tolist(), strict=True):
        small = Image.fromarray(picture(row)).resize((side, side), Image.Resampling.BILINEAR)
        top = (up - 1 - line) * side  # the map's y points up
        sheet[top : top + side, column * side : (column + 1) * side, :3] = np.asarray(small)
        sheet[top : top + side, column * side : (column + 1) * side, 3] = 255
    axes.imshow(sheet, interpolation="antialiased")
    return figure
