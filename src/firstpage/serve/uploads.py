"""Uploaded images: read up to a limit, decoded safely, never sent back as they came."""

import hashlib
import io
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import anyio
from PIL import Image, UnidentifiedImageError
from starlette.requests import ClientDisconnect

from firstpage.data.decode import Box, ImageBytes, decode_image
from firstpage.errors import UserError
from firstpage.serve.guard import Refusal

MAX_UPLOAD = 2**25  # bytes of an uploaded file
MAX_DECODED = 2**29  # bytes of memory for decoding it: 60 megapixels, far more as a plain JPEG
UPLOAD_SECONDS = 30.0
MIN_BOX = 0.01  # of a side; of less, no network sees anything
MAX_SIDE = 1280  # pixels of an image that is sent


@dataclass(frozen=True, eq=False)
class Query:
    """An image to search by: one that was uploaded, or a part of it.

    Args:
        content: The file.
        box: The part, as x0, y0, x1, y1 in shares of width and height.

    >>> Query(b"", (0.0, 0.0, 0.5, 1.0)).key[:8]
    '1e580cfd'
    """

    content: bytes
    box: Box | None = None

    @property
    def key(self) -> str:
        """What tells this query from others: 64 hexadecimal digits."""
        return hashlib.sha256(repr(self.box).encode() + self.content).hexdigest()


async def read_body(headers: Mapping[str, str], stream: AsyncIterator[bytes], most: int) -> bytes:
    """Read the body of a request, unless it is too large or takes too long.

    Args:
        headers: Of the request.
        stream: Of the body.
        most: Bytes that it has at most.

    Raises:
        Refusal: It has more, or they do not come in time.

    >>> async def one():
    ...     yield b"12345678"
    >>> anyio.run(read_body, {}, one(), 8)
    b'12345678'
    >>> anyio.run(read_body, {"content-length": "9"}, one(), 8)
    Traceback (most recent call last):
    firstpage.serve.guard.Refusal: more than 8 bytes; send a smaller file
    """
    too_large = Refusal(413, f"more than {most:,} bytes; send a smaller file", {"connection": "close"})
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > most:
        raise too_large
    parts, size = [], 0
    try:
        with anyio.fail_after(UPLOAD_SECONDS):
            async for part in stream:
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
    except ClientDisconnect:
        raise Refusal(400, "the file did not come whole") from None
    except TimeoutError:
        raise Refusal(408, "the file did not come in time", {"connection": "close"}) from None
    return b"".join(parts)


def decode_query(query: Query, min_side: int) -> Image.Image:
    """Decode an uploaded image, or the part of it that was asked for.

    Args:
        query: What was uploaded.
        min_side: A JPEG may be decoded at a reduced size, with at least this many pixels a side.

    Raises:
        Refusal: It is no image, or would take too much memory.

    >>> decode_query(Query(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), 64)
    Traceback (most recent call last):
    firstpage.serve.guard.Refusal: not an image of a known kind: use JPEG, PNG, WebP, GIF, AVIF, TIFF or BMP
    """
    if not query.content:
        raise Refusal(400, "no image: send one as the body of the request, or give id")
    x0, y0, x1, y1 = query.box or (0.0, 0.0, 1.0, 1.0)
    least = int(min_side / min(x1 - x0, y1 - y0)) + 1 if query.box else min_side
    try:
        image = decode_image(ImageBytes(query.content, "image"), max_bytes=MAX_DECODED, min_side=least)
    except UnidentifiedImageError:
        kinds = "JPEG, PNG, WebP, GIF, AVIF, TIFF or BMP"
        raise Refusal(415, f"not an image of a known kind: use {kinds}") from None
    except UserError as error:
        raise Refusal(422, f"the image cannot be used: {error}") from None
    except Image.DecompressionBombError:
        raise Refusal(422, "the image cannot be used: it has too many pixels") from None
    except Exception:  # broken files make decoders raise anything
        raise Refusal(422, "the image cannot be used: it is damaged or not complete") from None
    return image if query.box is None else crop_share(image, query.box)


def crop_share(image: Image.Image, box: Box) -> Image.Image:
    """Return a part of an image of at least one pixel.

    >>> crop_share(Image.new("RGB", (100, 50)), (0.5, 0.0, 1.0, 0.5)).size
    (50, 25)
    """
    width, height = image.size
    left, top = min(int(box[0] * width), width - 1), min(int(box[1] * height), height - 1)
    right, bottom = max(round(box[2] * width), left + 1), max(round(box[3] * height), top + 1)
    return image.crop((left, top, right, bottom))


def parse_box(text: str) -> Box:
    """Read a box, as x0, y0, x1, y1 in shares of width and height.

    Raises:
        Refusal: It is no box within the image.

    >>> parse_box("0.1,0.2,0.5,1")
    (0.1, 0.2, 0.5, 1.0)
    """
    try:
        x0, y0, x1, y1 = (float(part) for part in text.split(",", 4))
    except ValueError:
        x0 = y0 = x1 = y1 = 0.0
    if not (0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1):
        raise Refusal(422, "box: give x0,y0,x1,y1 in shares of width and height, such as 0.1,0.2,0.5,1")
    if min(x1 - x0, y1 - y0) < MIN_BOX:
        raise Refusal(422, f"box: has less than {MIN_BOX:.0%} of a side")
    return x0, y0, x1, y1


def to_jpeg(image: Image.Image, side: int = MAX_SIDE, quality: int = 88) -> bytes:
    """Return an image as a new JPEG, without anything of its file but the pixels.

    >>> Image.open(io.BytesIO(to_jpeg(Image.new("RGB", (2000, 1000)), 500))).size
    (500, 250)
    """
    image = image.copy()
    image.info = {}  # comments and profiles, which Pillow would write again
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()
