"""Framing, which scales images to the size in which they are stored, and the tasks of decoding workers."""

import io
import math
import os
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

from firstpage.data.decode import Box, ImageBytes, Unreadable, decode_image, open_regular
from firstpage.errors import UserError

if TYPE_CHECKING:  # workers import this module, and start twice as fast without them
    import numpy as np

    from firstpage.data.catalog import Catalog

RESIZES = ("shorter", "squash", "pad")
ASPECT = 1.5  # of stored images at most, as in most photographs; the crop of a test is central and square

JPEG_QUALITY = 90

Size = int | tuple[int, int]


class FileRecord(NamedTuple):
    """What is recorded of a decoded file.

    Attributes:
        bytes: Size of the file; -1 if it is missing.
        mtime: Its modification time, in ns.
        fingerprint: Of its content; "" if it could not be read.
        checksum: Of what is stored of it, or 0.
        height: Of the stored image; 0 if it is unreadable.
        width: Of the stored image.
        length: Bytes that are stored of it.
        reason: Why it is unreadable, or "".

    >>> FileRecord(9, 0, "", 0, 0, 0, 0, "not an image").reason
    'not an image'
    """

    bytes: int
    mtime: int
    fingerprint: str
    checksum: int
    height: int
    width: int
    length: int
    reason: str


def as_pair(size: Size) -> tuple[int, int]:
    """Return a size as height and width.

    >>> as_pair(224), as_pair((256, 128))
    ((224, 224), (256, 128))
    """
    return (size, size) if isinstance(size, int) else size


@dataclass(frozen=True)
class Framing:
    """How images are stored: the settings of a pixel store.

    Args:
        size: Side of the stored images, in pixels; height and width of those that are not square.
        resize: "shorter" scales the shorter side to `size` and keeps the aspect, up to 3:2: of longer images
            the ends are cut off. "squash" scales both sides to `size`. "pad" scales the longer side to `size`
            and pads with white.
        boxes: Crop each image to its box. Images without a box stay as they are.
        margin: Enlarge each box on every side by this share of its width and height, up to the image's edges.

    >>> Framing(64).scale(Image.new("RGB", (40, 20))).size, Framing(64).canvas
    ((96, 64), (64, 96))
    >>> Framing((64, 32), "squash").scale(Image.new("RGB", (40, 20))).size
    (32, 64)
    >>> Framing(0)
    Traceback (most recent call last):
    ...
    firstpage.errors.UserError: size=0: must be at least 1
    """

    size: Size = 256
    resize: str = "shorter"
    boxes: bool = False
    margin: float = 0.0

    def __post_init__(self) -> None:
        if min(as_pair(self.size)) < 1:
            raise UserError(f"size={self.size}: must be at least 1")
        if self.resize not in RESIZES:
            raise UserError(f"resize={self.resize!r}: must be one of {', '.join(RESIZES)}")
        if self.resize == "shorter" and self.least[0] != self.least[1]:
            raise UserError(f"resize='shorter': is for a square; with size={self.size} use squash or pad")
        if not self.margin >= 0:
            raise UserError(f"margin={self.margin}: must be at least 0")

    @property
    def least(self) -> tuple[int, int]:
        """Height and width that every stored image has at least.

        >>> Framing(64).least
        (64, 64)
        """
        return as_pair(self.size)

    @property
    def canvas(self) -> tuple[int, int]:
        """Height and width of what each image is stored on; see `PixelBatch`.

        >>> Framing(64, "squash").canvas
        (64, 64)
        """
        height, width = self.least
        return (height, round(ASPECT * width)) if self.resize == "shorter" else (height, width)

    @property
    def row_bytes(self) -> int:
        """Bytes of a canvas.

        >>> Framing(2, "pad").row_bytes
        12
        """
        height, width = self.canvas
        return height * width * 3

    def suiting(self, catalog: "Catalog") -> "Framing":
        """Return the same for the images of a catalog: without boxes if it has none.

        >>> import numpy as np
        >>> from pathlib import Path
        >>> from firstpage.data.catalog import Catalog
        >>> birds = Catalog("birds", Path(), ["a.jpg"], np.zeros(1, int), ["auk"], {})
        >>> Framing(64, boxes=True).suiting(birds).boxes
        False
        """
        return self if catalog.boxes is not None else replace(self, boxes=False)

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
            raise UserError(
                f"boxes=True: the catalog {catalog.name!r} has no boxes; use boxes=False, in a recipe "
                "model.boxes=false"
            )
        boxes = catalog.boxes.astype("f8")
        border = self.margin * (boxes[:, 2:] - boxes[:, :2])
        boxes[:, :2] -= border
        boxes[:, 2:] += border
        return boxes

    def read(self, file: ImageBytes, box: Box | None = None) -> Image.Image:
        """Decode an open image file into an RGB image of the stored size.

        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".png") as file:
        ...     Image.new("RGB", (40, 20), "red").save(file.name)
        ...     with open_regular(file.name) as opened:
        ...         image = Framing(4, "pad").read(opened)
        >>> [image.getpixel((0, y)) for y in range(4)]
        [(255, 255, 255), (255, 0, 0), (255, 0, 0), (255, 255, 255)]
        """
        # Decoding a JPEG at a reduced size filters coarsely: from twice the target size, `resize` refines it.
        return self.scale(decode_image(file, box=box, min_side=2 * max(self.least)))

    def scale(self, image: Image.Image) -> Image.Image:
        """Scale a decoded RGB image to the size in which it is stored."""
        width, height = image.size
        tall, wide = self.least
        if self.resize == "shorter":
            side, longest = min(width, height), self.canvas[1]
            across, down = (min(round(length * tall / side), longest) for length in (width, height))
            # The source of what is kept: all of it, or the middle of an image that is longer than the canvas.
            kept = [
                length if round(length * tall / side) <= longest else longest * side / tall
                for length in (width, height)
            ]
            left, top = (width - kept[0]) / 2, (height - kept[1]) / 2
            box = (left, top, left + kept[0], top + kept[1])
            return image.resize((across, down), Image.Resampling.BILINEAR, box=box)
        if self.resize == "pad":
            factor = min(tall / height, wide / width)
            inner = max(1, round(width * factor)), max(1, round(height * factor))
            padded = Image.new("RGB", (wide, tall), "white")
            corner = (wide - inner[0]) // 2, (tall - inner[1]) // 2
            padded.paste(image.resize(inner, Image.Resampling.BILINEAR), corner)
            return padded
        return image.resize((wide, tall), Image.Resampling.BILINEAR)

    def to_canvas(self, image: Image.Image) -> bytes:
        """Return the pixels of a scaled image on its canvas.

        >>> len(Framing(4).to_canvas(Image.new("RGB", (4, 6)))) == 4 * 6 * 3
        True
        """
        height, width = self.canvas
        if image.height > height:
            image = image.transpose(Image.Transpose.TRANSPOSE)
        filled = image.tobytes("raw", "RGB", 3 * width)  # each row filled up with zeros
        return filled + bytes(self.row_bytes - len(filled))


def decode_rows(
    framing: Framing,
    root: str,
    paths: list[str],
    boxes: list[Box] | None,
    target: str | None,
    offset: int,
    fingerprints: bool,
) -> tuple[list[FileRecord], bytes]:
    r"""Decode and scale images, for a store or a batch. Workers run this.

    Args:
        framing: How images are scaled.
        root: The folder of the images.
        paths: Their paths in it.
        boxes: A box for each, which may be NaN, or none at all.
        target: The file to write the canvases into, one after another; pixels never go through a pipe. Those
            of unreadable images are zero. None returns them as JPEGs instead.
        offset: Where in the file to begin.
        fingerprints: Record what tells later whether files changed and whether their pixels are right.

    Returns:
        A record for each image, and their JPEGs one after another, or nothing.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     records, _ = decode_rows(Framing(2, "pad"), "", ["nowhere.jpg"], None, file.name, 0, True)
    ...     records[0].reason, file.read()
    ('no such file', b'\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00')
    """
    blank = b"" if target is None else bytes(framing.row_bytes)
    records: list[FileRecord] = []
    with io.BytesIO() if target is None else open(target, "r+b") as output:
        output.seek(offset)
        for index, name in enumerate(paths):
            path = os.path.join(root, name)
            state, digest, reason, stored, width, height = file_state(path), "", "", blank, 0, 0
            try:
                with open_regular(path) as file:
                    digest = file.fingerprint() if fingerprints else ""
                    box = None if boxes is None or any(map(math.isnan, boxes[index])) else boxes[index]
                    image = framing.read(file, box)
                    stored = _to_jpeg(image) if target is None else framing.to_canvas(image)
                    width, height = image.size
            except Unreadable as error:
                reason = error.reason
            output.write(stored)
            checksum = pixel_checksum(stored, height, width) if fingerprints else 0
            records.append(FileRecord(*state, digest, checksum, height, width, len(stored), reason))
        return records, output.getvalue() if isinstance(output, io.BytesIO) else b""


def read_jpegs(
    framing: Framing, source: str, places: list[tuple[int, int]], target: str, offset: int
) -> list[tuple[int, int]]:
    """Decode stored JPEGs and write their canvases one after another into a file. Workers run this.

    Args:
        framing: How they were scaled.
        source: The file of the JPEGs.
        places: Offset and length of each in it.
        target: The file to write to.
        offset: Where in it to begin.

    Returns:
        Height and width of each image.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as source, tempfile.NamedTemporaryFile() as target:
    ...     length = source.write(_to_jpeg(Image.new("RGB", (6, 4), "red")))
    ...     source.flush()
    ...     read_jpegs(Framing(4), source.name, [(0, length)], target.name, 0), len(target.read())
    ([(4, 6)], 72)
    """
    sizes = []
    with open(source, "rb", buffering=0) as stored, open(target, "r+b") as output:
        output.seek(offset)
        for start, length in places:
            with Image.open(io.BytesIO(os.pread(stored.fileno(), length, start)), formats=["JPEG"]) as image:
                sizes.append((image.height, image.width))
                output.write(framing.to_canvas(image))
    return sizes


def pixel_checksum(stored: bytes, height: int, width: int) -> int:
    """Return the checksum of a stored image, its size included.

    >>> pixel_checksum(b"red", 1, 1) == pixel_checksum(b"red", 1, 2)
    False
    """
    return zlib.crc32(stored, zlib.crc32(b"%d %d" % (height, width)))


def _to_jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


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
