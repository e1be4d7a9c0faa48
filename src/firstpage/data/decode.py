"""Safe decoding of image files to upright RGB images.

No file is trusted. What is looked at, in this order:

1. what it is and how large: only regular files of at most 512 MiB are read (a FIFO would wait forever);
2. its structure: the size that its header claims, the scans of a JPEG, the checksums of a PNG. From these
   follows how much memory its decoder needs: files that need more than `MAX_BYTES`, 1 GiB, are not decoded;
3. its pixels. In a worker process, a file that takes more than ten seconds of processor time, or that kills
   the process, is unreadable, too; see `firstpage.data.workers`.

A file is read once, into memory: programs that change it meanwhile do no harm.
"""

import hashlib
import io
import math
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from PIL import Image, ImageChops, ImageFile, UnidentifiedImageError

from firstpage.data import worker
from firstpage.data.file_structure import (
    check_jpeg2000,
    check_png,
    is_jpeg2000,
    jpeg_scans,
    webp_size,
)
from firstpage.errors import UserError

MAX_BYTES = 2**30  # of memory for one image, its file included: enough for a JPEG of 108 megapixels
MAX_FILE_BYTES = 2**29
MAX_SIDE = 2**16  # a JPEG has at most 65,535; the weights for resizing one side take 16 bytes per pixel of it
MAX_SCANNED = 2**31  # pixels times scans of a JPEG: seconds; photographs have about 10 scans

# Bytes that decoders need per pixel: measured as the peak memory of a process, rounded up. Pillow takes 4 per
# pixel of RGB, and 4 more while it converts or turns an image.
PIXEL_BYTES = {"WEBP": 18, "AVIF": 24, "TIFF": 13, "JPEG2000": 32, "HEIF": 24}
STRIP = 2**20  # pixels converted at a time

# The formats in which datasets are published. Pillow's other formats are left out on purpose: EPS starts
# Ghostscript, and TGA accepts any text.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")

HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
HEIF_EXTRA = "'firstpage[heif]'"

NO_MEMORY = "needs more memory than there is"  # stores contain this text, and try such files again

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

FILE_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}

Box = tuple[float, float, float, float]
StrPath = str | os.PathLike[str]


class Unreadable(UserError):  # noqa: N818 - an adjective, as in "unreadable images"
    """An image file that cannot be decoded.

    Args:
        path: The file.
        reason: What is wrong with it, in one line without the path.

    >>> str(Unreadable("birds/7.jpg", "image file is truncated"))
    'birds/7.jpg: image file is truncated'
    """

    def __init__(self, path: StrPath, reason: str) -> None:
        super().__init__(path, reason)
        self.path = os.fspath(path)
        self.reason = reason

    def __str__(self) -> str:
        return f"{printable(self.path)}: {self.reason}"


def printable(path: StrPath) -> str:
    r"""Return a path as one printable line, whatever characters it contains.

    >>> print(printable("böse.jpg"), printable("two\nlines.jpg"))
    böse.jpg 'two\nlines.jpg'
    """
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)


def decode_image(
    file: "StrPath | ImageBytes",
    *,
    max_bytes: int = MAX_BYTES,
    box: Box | None = None,
    min_side: int = 0,
) -> Image.Image:
    """Decode one image file to upright RGB.

    EXIF orientation is applied. CMYK (including Adobe's inverted kind), grayscale, palette, 1-bit and 16-bit
    images are converted. Transparent images are drawn on white. Of an animation, the first frame is decoded.
    A truncated file is unreadable, not half gray.

    Args:
        file: The path of an image file, or a file from `open_regular`.
        max_bytes: Files that would need more memory are unreadable: about 130 megapixels, 59 as WebP, 44 as
            AVIF. Pillow's own limit, 2 × `Image.MAX_IMAGE_PIXELS`, applies as well.
        box: Region to crop, as x0, y0, x1, y1 in pixels of the file, before its orientation is applied.
        min_side: Allows a JPEG to be decoded at 1/2, 1/4 or 1/8 of its size, several times faster, as long
            as each side of the result has at least this many pixels. 0 decodes at full size.

    Raises:
        Unreadable: The file cannot be decoded, for any reason.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".png") as file:
    ...     Image.new("LA", (4, 2), (0, 0)).save(file.name)
    ...     image = decode_image(file.name)
    >>> image.mode, image.size, image.getpixel((0, 0))
    ('RGB', (4, 2), (255, 255, 255))
    >>> decode_image("nowhere.jpg")
    Traceback (most recent call last):
    ...
    firstpage.data.decode.Unreadable: nowhere.jpg: no such file
    """
    if not isinstance(file, ImageBytes):
        with open_regular(file) as opened:
            return decode_image(opened, max_bytes=max_bytes, box=box, min_side=min_side)
    if reason := worker.refused.get(file.name):
        raise Unreadable(file.name, reason)
    tolerant = ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata, but only pixels matter
            ImageFile.LOAD_TRUNCATED_IMAGES = False  # some libraries enable it for the whole process
            return _decode(file, max_bytes, box, min_side)
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = tolerant


def upright_rgb(image: Image.Image) -> Image.Image:
    """Return a Pillow image as `decode_image` does its file: upright RGB, what is transparent on white.

    Raises:
        UserError: Its pixels are numbers of no known range.

    >>> upright_rgb(Image.new("RGBA", (4, 2))).getpixel((0, 0))
    (255, 255, 255)
    """
    image.load()  # which turns a TIFF
    return _upright(_rgb(image, image.format), _orientation(image))


class ImageBytes(io.BytesIO):
    """The content of an image file, from `open_regular`.

    Attributes:
        name: The path of the file.
        format: Pillow's name of its format. Known once it has been decoded.
        size: Width and height as stored, before the orientation is applied. Known once it has been decoded.

    >>> ImageBytes(b"pixels", "a.jpg").fingerprint()
    '6ec9c2b0eb14010746c8bce8939303b3'
    """

    format = ""
    size = 0, 0

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name

    def fingerprint(self) -> str:
        """Return the first 32 hexadecimal digits of the sha256 of the content."""
        return hashlib.sha256(self.getbuffer()).hexdigest()[:32]


@contextmanager
def open_regular(path: StrPath) -> Iterator[ImageBytes]:
    """Read an image file for this context, if it is a regular file, not empty and not too large.

    Whatever goes wrong within the context, such as in decoding or resizing, makes the file unreadable.

    Raises:
        Unreadable: The file cannot be read, or an exception was raised within the context.

    >>> with open_regular("."):
    ...     pass
    Traceback (most recent call last):
    ...
    firstpage.data.decode.Unreadable: .: a directory, not a file
    >>> with open_regular(__file__) as file:
    ...     len(file.getvalue()) / 0
    Traceback (most recent call last):
    ...
    firstpage.data.decode.Unreadable: ...decode.py: division by zero
    """
    name = os.fspath(path)
    worker.begin(name)
    try:
        yield ImageBytes(_read(name), name)
    except Unreadable:
        raise
    except FileNotFoundError as error:
        reason = "dangling symbolic link" if os.path.islink(name) else "no such file"
        raise Unreadable(name, reason) from error
    except Exception as error:  # broken files make decoders raise anything: struct.error, SyntaxError…
        raise Unreadable(name, _reason(error)) from error
    finally:
        worker.end()


def _read(path: str) -> bytes:
    status = os.stat(path)
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise UserError(f"{FILE_KINDS.get(kind, 'something else')}, not a file")
    # Another process may put a FIFO in its place just now, hence O_NONBLOCK.
    with open(path, "rb", buffering=0, opener=lambda *_: os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
        if status.st_size > MAX_FILE_BYTES:
            raise UserError(
                f"file of {status.st_size / 2**20:,.0f} MiB; at most {MAX_FILE_BYTES >> 20} are read"
            )
        content = file.read(status.st_size)
    if not content:
        raise UserError("empty file")
    return content


def _decode(file: ImageBytes, max_bytes: int, box: Box | None, min_side: int) -> Image.Image:
    content = file.getvalue()
    _check_cost(webp_size(content), PIXEL_BYTES["WEBP"], len(content), max_bytes)
    scans = jpeg_scans(content) if content[:2] == b"\xff\xd8" else 1
    if content[:4] == b"\x89PNG":
        check_png(content)
    file.seek(0)
    formats: tuple[str, ...] = FORMATS
    if is_jpeg2000(content):
        check_jpeg2000(content)
    elif content[4:8] == b"ftyp" and content[8:12] in HEIF_BRANDS and b"avif" not in content[:64]:
        formats = _heif_formats()
    image: Image.Image = Image.open(file, formats=formats)
    # Pillow rotates a TIFF upright by itself: its size when it is opened, its pixels when they are loaded.
    turned = _orientation(image) if image.format == "TIFF" else 1
    width, height = image.size[::-1] if turned in (5, 6, 7, 8) else image.size
    file.format, file.size = image.format or "", (width, height)
    x0, y0, x1, y1 = (0.0, 0.0, width, height) if box is None else _clip(box, width, height)
    scale = 1
    if min_side and image.format in ("JPEG", "MPO"):
        scale = next((scale for scale in (8, 4, 2) if min(x1 - x0, y1 - y0) >= scale * min_side), 1)
    _check_cost(_stored_size(image), _pixel_bytes(image, scans, scale), len(content), max_bytes)
    if scans * width * height > MAX_SCANNED:
        raise UserError(
            f"progressive JPEG of {scans:,} scans and {width} × {height} pixels: too slow to decode"
        )
    if scale > 1:
        image.draft(None, (width // scale, height // scale))
    image.load()
    format, orientation = image.format, _orientation(image)
    if box is not None:
        if turned in UPRIGHT:
            orientation = turned
            image = image.transpose(UPRIGHT[{6: 8, 8: 6}.get(turned, turned)])  # back to how it is stored
        across, down = image.width / width, image.height / height  # 1 unless decoded at a reduced size
        corner = math.floor(x0 * across), math.floor(y0 * down)
        image = image.crop((*corner, math.ceil(x1 * across), math.ceil(y1 * down)))
    return _upright(_rgb(image, format), orientation)


def has_heif() -> bool:
    """Return whether the package that reads HEIC files, the photographs of phones, is installed.

    >>> has_heif() in (True, False)
    True
    """
    return find_spec("pillow_heif") is not None


def _heif_formats() -> tuple[str, ...]:
    """Make Pillow read HEIF files, once in a process: the plugin takes time to import."""
    if "HEIF" not in Image.OPEN:
        if not has_heif():
            raise UserError(f"a HEIC image: pip install {HEIF_EXTRA} to read it, or convert it to JPEG")
        import pillow_heif

        pillow_heif.register_heif_opener()
    return ("HEIF",)


def _check_cost(size: tuple[int, int], pixel_bytes: float, file_bytes: int, max_bytes: int) -> None:
    """Raise an error if decoding takes too much memory: pixels times what each needs, and the file itself."""
    width, height = size
    claim = f"header claims {width} × {height} pixels"
    if max(size) > MAX_SIDE:
        raise UserError(f"{claim}; a side has at most {MAX_SIDE}")
    cost = width * height * pixel_bytes + file_bytes
    if cost > max_bytes:
        raise UserError(
            f"{claim}, which take {cost / 2**20:,.0f} MiB to decode; max_bytes allows {max_bytes >> 20:,}"
        )


def _pixel_bytes(image: Image.Image, scans: int, scale: int) -> float:
    if image.format not in ("JPEG", "MPO"):
        return PIXEL_BYTES.get(image.format or "", 8)
    # All coefficients of several scans are in memory with the pixels, but not while these are turned.
    coefficients = 2 * len(image.getbands()) if scans > 1 else 0
    return 4 / scale**2 + max(coefficients, 4 / scale**2)


def _stored_size(image: Image.Image) -> tuple[int, int]:
    """Return the size of an image, or that of a TIFF's tiles if they are larger."""
    tags = getattr(image, "tag_v2", {})
    tile = tags.get(322, 0), tags.get(323, 0)
    return max(image.size, tile, key=lambda size: size[0] * size[1])


def _clip(box: Box, width: int, height: int) -> Box:
    x0, y0, x1, y1 = max(box[0], 0.0), max(box[1], 0.0), min(box[2], width), min(box[3], height)
    if not (x0 < x1 and y0 < y1):
        raise UserError(
            f"box {tuple(round(float(side), 1) for side in box)} contains no pixel of {width} × {height}"
        )
    return x0, y0, x1, y1


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # broken metadata around valid pixels
        return 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image


def _rgb(image: Image.Image, format: str | None) -> Image.Image:
    if image.mode == "F":
        raise UserError("floating-point pixels have no known range")
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    inverted = image.mode == "CMYK" and format in ("JPEG", "MPO") and "adobe" not in image.info
    rows = max(1, STRIP // image.width)
    if rows >= image.height:
        return _strip_to_rgb(image, inverted)
    converted = Image.new("RGB", image.size)
    for top in range(0, image.height, rows):  # in strips, so that copies take little memory
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        converted.paste(_strip_to_rgb(strip, inverted), (0, top))
    return converted


def _strip_to_rgb(image: Image.Image, inverted: bool) -> Image.Image:
    if image.mode.startswith("I"):
        import numpy as np  # few images need it, and workers start twice as fast without it

        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise UserError("32-bit pixels outside 0…65535 have no known range")
        image = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    elif inverted:
        image = ImageChops.invert(image)  # Pillow takes every CMYK JPEG for an inverted one of Adobe's
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format, or its header is damaged"
    if isinstance(error, Image.DecompressionBombError):
        return "header claims more pixels than Pillow's limit"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    if isinstance(error, MemoryError) or "out of memory" in text.lower():  # the text comes from the decoders
        return NO_MEMORY
    return " ".join(text.split())
