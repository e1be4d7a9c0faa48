"""Framing, which turns images of any shape into squares of pixels, and the tasks of decoding workers."""

import math
import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from firstpage.data.decode import Box, ImageBytes, Unreadable, decode_image, open_regular
from firstpage.errors import UserError

if TYPE_CHECKING:  # workers import this module, and start twice as fast without them
    import numpy as np

    from firstpage.data.catalog import Catalog

RESIZES = ("squash", "shorter", "pad")

# A decoded file: size in bytes, modification time in ns, fingerprint (or ""), checksum of the pixels (or 0),
# reason if unreadable (or "").
FileRecord = tuple[int, int, str, int, str]


@dataclass(frozen=True)
class Framing:
    """The settings of a pixel store.

    Args:
        size: Side of the square, in pixels.
        resize: "squash" stretches both sides to `size`; "shorter" scales the shorter side to `size` and keeps
            the center; "pad" scales the longer side to `size` and pads with white.
        boxes: Crop each image to its box. Images without a box stay as they are.
        margin: Enlarge each box on every side by this share of its width and height, up to the image's edges.

    >>> Framing(64, "shorter").square(Image.new("RGB", (40, 20))).size
    (64, 64)
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
            raise UserError(f"resize={self.resize!r}: must be one of {', '.join(RESIZES)}")
        if not self.margin >= 0:
            raise UserError(f"margin={self.margin}: must be at least 0")

    def crops(self, catalog: "Catalog") -> "np.ndarray | None":
        """Return the boxes to crop, with margins: [N, 4], NaN for images without one; None without `boxes`.

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
            raise UserError(f"boxes=True: the catalog {catalog.name!r} has no boxes; use boxes=False")
        boxes = catalog.boxes.astype("f8")
        border = self.margin * (boxes[:, 2:] - boxes[:, :2])
        boxes[:, :2] -= border
        boxes[:, 2:] += border
        return boxes

    def read(self, file: ImageBytes, box: Box | None = None) -> Image.Image:
        """Decode an open image file into an RGB square.

        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".png") as file:
        ...     Image.new("RGB", (40, 20), "red").save(file.name)
        ...     with open_regular(file.name) as opened:
        ...         square = Framing(4, "pad").read(opened)
        >>> [square.getpixel((0, y)) for y in range(4)]
        [(255, 255, 255), (255, 0, 0), (255, 0, 0), (255, 255, 255)]
        """
        # Decoding a JPEG at a reduced size filters coarsely: from twice the target size, `resize` refines it.
        return self.square(decode_image(file, box=box, min_side=2 * self.size))

    def square(self, image: Image.Image) -> Image.Image:
        """Resize a decoded RGB image to a square."""
        width, height = image.size
        target = (self.size, self.size)
        if self.resize == "shorter":
            side = min(width, height)
            left, top = (width - side) / 2, (height - side) / 2
            return image.resize(target, Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        if self.resize == "pad":
            scale = self.size / max(width, height)
            inner = max(1, round(width * scale)), max(1, round(height * scale))
            square = Image.new("RGB", target, "white")
            corner = (self.size - inner[0]) // 2, (self.size - inner[1]) // 2
            square.paste(image.resize(inner, Image.Resampling.BILINEAR), corner)
            return square
        return image.resize(target, Image.Resampling.BILINEAR)


def decode_rows(
    framing: Framing,
    root: str,
    paths: list[str],
    boxes: list[Box] | None,
    target: str,
    offset: int,
    fingerprints: bool,
) -> list[FileRecord]:
    r"""Decode `paths` and write their squares one after another into the file `target`, starting at `offset`.

    Workers run this: pixels go to the file, never through a pipe. The pixels of unreadable images are zero.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     decode_rows(Framing(2), "", ["nowhere.jpg"], None, file.name, 0, fingerprints=True)
    ...     file.read()
    [(-1, -1, '', 2077607535, 'no such file')]
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
                    digest = file.fingerprint() if fingerprints else ""
                    box = None if boxes is None or any(map(math.isnan, boxes[index])) else boxes[index]
                    pixels = framing.read(file, box).tobytes()
            except Unreadable as error:
                reason = error.reason
            output.write(pixels)
            checksum = zlib.crc32(pixels) if fingerprints else 0
            rows.append((size, mtime, digest, checksum, reason))
    return rows


def fingerprint_files(root: str, paths: list[str]) -> list[str]:
    """Return the fingerprints of files, "" for those that cannot be read.

    >>> fingerprint_files("", ["nowhere.jpg"])
    ['']
    """
    digests = []
    for path in paths:
        try:
            with open_regular(os.path.join(root, path)) as file:
                digests.append(file.fingerprint())
        except Unreadable:
            digests.append("")
    return digests


def file_state(path: str) -> tuple[int, int]:
    """Return size and modification time (ns) of a file, which show whether it has changed; -1 if missing.

    >>> file_state("nowhere.jpg")
    (-1, -1)
    """
    try:
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    except (OSError, ValueError):
        return -1, -1
