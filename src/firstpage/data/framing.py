"""Framing: how an image of any shape becomes a square of pixels, and the work of one decoding task."""

import io
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from firstpage.data.decode import Box, Unreadable, decode_file, fingerprint, open_regular
from firstpage.errors import UserError

if TYPE_CHECKING:  # workers import this module, and start twice as fast without these
    import numpy as np

    from firstpage.data.catalog import Catalog

RESIZES = ("squash", "shorter", "pad")

# What a row was made from: bytes, modification time (ns), fingerprint ("" if not read), reason if unreadable.
FileRecord = tuple[int, int, str, str]


@dataclass(frozen=True)
class Framing:
    """The settings of a pixel store.

    Args:
        size: side of the square, in pixels.
        resize: "squash" stretches both sides to `size`; "shorter" scales the shorter side to `size` and keeps
            the center; "pad" scales the longer side to `size` and fills up with white.
        boxes: keep only what is inside each image's box (an image without one is kept whole).
        margin: enlarge the box on each side by this share of its width and height, as far as the image goes.

    >>> Framing(64, "shorter")
    Framing(size=64, resize='shorter', boxes=False, margin=0.0)
    >>> Framing(0)
    Traceback (most recent call last):
    ...
    firstpage.errors.UserError: size=0: must be at least 1
    """

    size: int = 256
    resize: str = "squash"
    boxes: bool = False
    margin: float = 0.0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"size={self.size}: must be at least 1")
        if self.resize not in RESIZES:
            raise UserError(f"resize={self.resize!r}: choose one of {', '.join(RESIZES)}")
        if not self.margin >= 0:
            raise UserError(f"margin={self.margin}: must be at least 0")

    def crops(self, catalog: "Catalog") -> "np.ndarray | None":
        """The boxes to cut out, margins added: [N, 4], NaN where an image has none; None to keep all whole.

        >>> import numpy as np
        >>> from pathlib import Path
        >>> from firstpage.data.catalog import Catalog
        >>> box = np.array([[10, 10, 30, 20]])
        >>> bird = Catalog("bird", Path(), ["a.jpg"], np.zeros(1, int), ["bird"], {}, box)
        >>> Framing(boxes=True, margin=0.1).crops(bird)
        array([[ 8.,  9., 32., 21.]])
        """
        if not self.boxes:
            return None
        if catalog.boxes is None:
            raise UserError(f"boxes=True: the catalog {catalog.name!r} has no boxes; build with boxes=False")
        boxes = catalog.boxes.astype("f8")
        border = self.margin * (boxes[:, 2:] - boxes[:, :2])
        boxes[:, :2] -= border
        boxes[:, 2:] += border
        return boxes

    def read(self, file: io.BufferedReader, box: Box | None = None) -> Image.Image:
        """Decode an open image file into an RGB square.

        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".png") as file:
        ...     Image.new("RGB", (40, 20), "red").save(file.name)
        ...     with open_regular(file.name) as opened:
        ...         square = Framing(4, "pad").read(opened)
        >>> [square.getpixel((0, y)) for y in range(4)]
        [(255, 255, 255), (255, 0, 0), (255, 0, 0), (255, 255, 255)]
        """
        # Decoding a JPEG smaller is a coarse filter: twice the target leaves the last, fine step to `resize`.
        return self.square(decode_file(file, box=box, min_side=2 * self.size))

    def square(self, image: Image.Image) -> Image.Image:
        """An RGB image that is decoded already, as a square.

        >>> Framing(2).square(Image.new("RGB", (40, 20))).size
        (2, 2)
        """
        width, height = image.size
        whole = (self.size, self.size)
        if self.resize == "shorter":
            side = min(width, height)
            left, top = (width - side) / 2, (height - side) / 2
            return image.resize(whole, Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        if self.resize == "pad":
            scale = self.size / max(width, height)
            inner = max(1, round(width * scale)), max(1, round(height * scale))
            square = Image.new("RGB", whole, "white")
            corner = (self.size - inner[0]) // 2, (self.size - inner[1]) // 2
            square.paste(image.resize(inner, Image.Resampling.BILINEAR), corner)
            return square
        return image.resize(whole, Image.Resampling.BILINEAR)


def decode_rows(
    framing: Framing,
    root: str,
    paths: list[str],
    boxes: list[Box] | None,
    target: str,
    offset: int,
    fingerprints: bool,
) -> list[FileRecord]:
    r"""Decode `paths` and write their squares, one after the other, into the file `target` from `offset` on.

    It is what a worker does: pixels go to the file, never through a pipe. An unreadable image gives zeros and
    its reason.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     decode_rows(Framing(2), "", ["nowhere.jpg"], None, file.name, 0, fingerprints=True)
    ...     file.read()
    [(-1, -1, '', 'no such file')]
    b'\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00'
    """
    blank = bytes(framing.size**2 * 3)
    rows: list[FileRecord] = []
    with open(target, "r+b") as output:
        output.seek(offset)
        for index, name in enumerate(paths):
            path = os.path.join(root, name)
            size, mtime, digest, reason, pixels = *file_state(path), "", "", blank
            try:
                with open_regular(path) as file:
                    digest = fingerprint(file) if fingerprints else ""
                    box = None if boxes is None or any(map(math.isnan, boxes[index])) else boxes[index]
                    pixels = framing.read(file, box).tobytes()
            except Unreadable as error:
                reason = error.reason
            output.write(pixels)
            rows.append((size, mtime, digest, reason))
    return rows


def fingerprint_files(root: str, paths: list[str]) -> list[str]:
    """The fingerprints of some files; "" where one cannot be read.

    >>> fingerprint_files("", ["nowhere.jpg"])
    ['']
    """

    def one(path: str) -> str:
        try:
            with open_regular(path) as file:
                return fingerprint(file)
        except Unreadable:
            return ""

    return [one(os.path.join(root, path)) for path in paths]


def file_state(path: str) -> tuple[int, int]:
    """Size and modification time (ns) of a file: what tells, without reading it, that it has not changed.

    >>> file_state("nowhere.jpg")
    (-1, -1)
    """
    try:
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    except (OSError, ValueError):
        return -1, -1
