"""Queries of a search: parts of images, folders of them, and very many of them."""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from firstpage.data import read
from firstpage.data.decode import Box, Unreadable, decode_image
from firstpage.data.progress import progress_bar
from firstpage.errors import UserError
from firstpage.search.index import Index
from firstpage.search.match import Match

BATCH = 256  # queries searched at a time
FEW = 32  # queries, up to which no progress bar is shown


@dataclass(frozen=True)
class Answer:
    """A query and its results.

    Attributes:
        name: Of the query: its file, or `id 7`.
        images: What was searched for: files, and ids of the index. Several if their mean was.
        matches: The results, the best first.
        box: Part of the images that was searched for.

    >>> Answer("id 7", [7], [Match(3, 0.9, "mugs/3.jpg", "mug")]).matches[0].label
    'mug'
    """

    name: str
    images: list[str | int]
    matches: list[Match]
    box: Box | None = None


def crop_image(image: str | os.PathLike[str] | Image.Image | np.ndarray, box: Box) -> Image.Image:
    """Return a part of an image, to search for it: `index.search([crop_image("query.jpg", box)])`.

    Args:
        image: A file, a Pillow image, or an array, uint8 [height, width, 3].
        box: Left, top, right and bottom edge in pixels, counted from the top left of the upright image. What
            is outside of the image is cut off.

    Raises:
        UserError: The box has no area within the image, or the image cannot be decoded.

    >>> crop_image(Image.new("RGB", (60, 50)), (10, 10, 90, 40)).size
    (50, 30)
    >>> crop_image(Image.new("RGB", (60, 50)), (70, 10, 90, 40))
    Traceback (most recent call last):
    firstpage.errors.UserError: box=70,10,90,40: has no area in an image of 60 × 50 pixels
    """
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    whole = image if isinstance(image, Image.Image) else decode_image(image)
    left, top = max(0, math.floor(box[0])), max(0, math.floor(box[1]))
    right, bottom = min(whole.width, math.ceil(box[2])), min(whole.height, math.ceil(box[3]))
    if left >= right or top >= bottom:
        edges = ",".join(f"{value:g}" for value in box)
        raise UserError(f"box={edges}: has no area in an image of {whole.width} × {whole.height} pixels")
    return whole.crop((left, top, right, bottom))


def parse_box(text: str) -> Box:
    """Read a box such as `10,20,200,180`.

    >>> parse_box("10,20,200,180")
    (10.0, 20.0, 200.0, 180.0)
    >>> parse_box("10,20,5,180")
    Traceback (most recent call last):
    firstpage.errors.UserError: box='10,20,5,180': give left,top,right,bottom in pixels, such as 10,20,200,180
    """
    try:
        left, top, right, bottom = (float(value) for value in text.split(","))
    except ValueError:
        left = top = right = bottom = math.nan
    # The API counts in shares of the sides: such a box would be less than a pixel here.
    if not (math.isfinite(left + top + right + bottom) and right - left >= 1 and bottom - top >= 1):
        raise UserError(
            f"box={text!r}: give left,top,right,bottom in pixels, such as 10,20,200,180"
        ) from None
    return left, top, right, bottom


def search_many(
    index: Index,
    paths: Sequence[str | os.PathLike[str]] = (),
    k: int = 10,
    *,
    ids: Sequence[int] = (),
    box: Box | None = None,
    average: bool = False,
    where: str | None = None,
    min_precision: float | None = None,
    rerank: int = 0,
    progress: bool = True,
) -> Iterator[Answer]:
    """Search for any number of images, folders of images and ids, in batches, and yield the answers in order.

    Images of folders that cannot be decoded are left out, with a warning; those that are named are an error.

    Args:
        index: The index.
        paths: Images, or folders of them.
        k: Number of results.
        ids: Images of the index as queries, after the others.
        box: Part of every image to search for; see `crop_image`.
        average: Search once, by the mean of all queries.
        where: A filter; see `Index.search`.
        min_precision: See `Index.search`.
        rerank: See `Index.search`.
        progress: Show a progress bar, if there are many.

    Raises:
        UserError: As `Index.search`; or there is no query, or a box for an id.

    >>> list(search_many(Index.open("nowhere"), ["query.jpg"]))
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no index there; firstpage index build makes one
    """
    if box is not None and ids:
        raise UserError("box: is a part of an image file: name the file instead of its id")
    files = [query for path in paths for query in _files(path)]
    if not files and not ids:
        raise UserError("search: name an image, a folder of them, or an id with --id")
    batches = [(files, list(ids))]
    if not average:
        batches = [(files[start : start + BATCH], []) for start in range(0, len(files), BATCH)]
        batches += [([], list(ids[start : start + BATCH])) for start in range(0, len(ids), BATCH)]
    total = len(files) + len(ids)
    with progress_bar("searching", total, progress and total > FEW) as advance:
        for some, numbers in batches:
            while True:
                try:
                    images = [file if box is None else crop_image(file, box) for file, _ in some]
                    found = index.search(
                        images,
                        k,
                        ids=numbers,
                        where=where,
                        average=average,
                        min_precision=min_precision,
                        rerank=rerank,
                    )
                    break
                except Unreadable as error:  # decoding all of them before would take twice as long
                    if (error.path, True) not in some:
                        raise
                    warnings.warn(f"left out {error}", stacklevel=2)
                    some.remove((error.path, True))
            searched: list[str | int] = [*(file for file, _ in some), *numbers]
            if average and found:
                yield Answer("the mean of all", searched, found[0], box)
            for image, matches in zip(searched, found, strict=True) if not average else ():
                yield Answer(image if isinstance(image, str) else f"id {image}", [image], matches, box)
            advance(len(some) + len(numbers))


def _files(path: str | os.PathLike[str]) -> list[tuple[str, bool]]:
    """Return the files of a query, and whether they are those of a folder."""
    if not Path(path).is_dir():
        return [(os.fspath(path), False)]
    catalog = read(Path(path), unlabeled=True)
    return [(str(catalog.path(row)), True) for row in range(len(catalog))]
