"""Queries with their first results, right ones in green frames and wrong ones in red."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from firstpage.figures.style import Style, make_style
from firstpage.pairs import unit

RIGHT, WRONG, PLAIN = (22, 139, 71), (203, 47, 47), (120, 120, 120)


def draw_retrieved_lists(
    embeddings: Tensor,
    labels: Tensor,
    load_image: Callable[[int], np.ndarray],
    queries: Sequence[int],
    gallery: Sequence[int] | None = None,
    *,
    results: int = 10,
    side: int = 72,
    style: Style | None = None,
) -> Image.Image:
    """Draw a line for each query: the query, followed by its first results.

    Args:
        embeddings: [N, D] embeddings of all images.
        labels: [N] their classes.
        load_image: Function that returns the i-th image, uint8 [h, w, 3].
        queries: Indices of the queries.
        gallery: Indices of the images to search. Defaults to all but the query.
        results: Number of results.
        side: Side of an image in pixels.
        style: Colors. Defaults to those for light pages.

    >>> points, labels = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([0, 0, 1])
    >>> sheet = draw_retrieved_lists(points, labels, lambda row: np.zeros((4, 4, 3), np.uint8), [0])
    >>> sheet.size[1] < sheet.size[0]
    True
    """
    vectors = unit(embeddings.float())
    rows = torch.arange(len(labels)) if gallery is None else torch.tensor(gallery)
    similarity = vectors[list(queries)] @ vectors[rows].T  # [queries, rows]
    if gallery is None:
        similarity[torch.arange(len(queries)), torch.tensor(queries)] = -torch.inf
    found = rows[similarity.topk(min(results, len(rows) - (gallery is None))).indices.cpu()]
    gap, frame = side // 8, max(2, side // 16)
    step = side + 2 * frame + gap
    width = step * (1 + found.shape[1]) + 2 * gap
    sheet = Image.new("RGB", (width, step * len(queries) + gap), (style or make_style()).background)
    canvas = ImageDraw.Draw(sheet)

    def paste(row: int, left: int, top: int, color: tuple[int, int, int]) -> None:
        canvas.rectangle((left, top, left + side + 2 * frame - 1, top + side + 2 * frame - 1), fill=color)
        small = Image.fromarray(load_image(row)).resize((side, side), Image.Resampling.BILINEAR)
        sheet.paste(small, (left + frame, top + frame))

    for line, (query, row) in enumerate(zip(queries, found.tolist(), strict=True)):
        top = gap + line * step
        paste(query, gap, top, PLAIN)
        for position, result in enumerate(row):
            color = RIGHT if labels[result] == labels[query] else WRONG
            paste(result, 2 * gap + step * (1 + position), top, color)
    return sheet
