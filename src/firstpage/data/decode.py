"""Safe decoding of image files to upright RGB images.

No file is trusted: only regular files are opened (reading a FIFO would wait forever), and the size that a
header claims is compared with `max_pixels` before memory is allocated.
"""

import hashlib
import io
import math
import os
import stat
import warnings

from PIL import Image, ImageChops, ImageFile, UnidentifiedImageError

from firstpage.errors import UserError

# Photographs of 108 megapixels exist; a worker then needs half a gigabyte for one image, never more.
MAX_PIXELS = 2**27

# The formats in which datasets are published. Pillow's other formats are left out on purpose: EPS starts
# Ghostscript, TGA accepts any text, and a JPEG 2000 file truncated after its header decodes to a blank image.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")

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
    file: StrPath | io.BufferedReader,
    *,
    max_pixels: int = MAX_PIXELS,
    box: Box | None = None,
    min_side: int = 0,
) -> Image.Image:
    """Decode one image file to upright RGB.

    EXIF orientation is applied. CMYK (including Adobe's inverted kind), grayscale, palette, 1-bit and 16-bit
    images are converted. Transparent images are drawn on white. Of an animation, the first frame is decoded.
    A truncated file is unreadable, not half gray.

    Args:
        file: The path of an image file, or a file from `open_regular`.
        max_pixels: Files whose header claims more pixels are unreadable. Pillow's own limit,
            2 × `Image.MAX_IMAGE_PIXELS`, applies as well.
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
    if not isinstance(file, io.BufferedReader):
        with open_regular(file) as opened:
            return decode_image(opened, max_pixels=max_pixels, box=box, min_side=min_side)
    tolerant = ImageFile.LOAD_TRUNCATED_IMAGES
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata, but only pixels matter
            ImageFile.LOAD_TRUNCATED_IMAGES = False  # some libraries enable it for the whole process
            return _decode(file, max_pixels, box, min_side)
    except Exception as error:  # broken files make decoders raise anything: struct.error, SyntaxError…
        raise Unreadable(file.name, _reason(error)) from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = tolerant


def fingerprint(file: io.BufferedReader) -> str:
    """Return the first 32 hexadecimal digits of the sha256 of an open file.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"pixels")
    ...     file.flush()
    ...     with open_regular(file.name) as opened:
    ...         fingerprint(opened)
    '6ec9c2b0eb14010746c8bce8939303b3'
    """
    try:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError as error:
        raise Unreadable(file.name, _reason(error)) from error


def open_regular(path: StrPath) -> io.BufferedReader:
    """Open a file for reading, if it is a regular file and not empty.

    >>> open_regular(".")
    Traceback (most recent call last):
    ...
    firstpage.data.decode.Unreadable: .: a directory, not a file
    """
    try:
        status = os.stat(path)
        kind = stat.S_IFMT(status.st_mode)
        if kind != stat.S_IFREG:
            raise Unreadable(path, f"{FILE_KINDS.get(kind, 'something else')}, not a file")
        if status.st_size == 0:
            raise Unreadable(path, "empty file")
        # With Python's default buffer of 8 kB, Pillow decodes up to a quarter slower.
        return io.BufferedReader(io.FileIO(path), 2**20)
    except Unreadable:
        raise
    except FileNotFoundError as error:
        reason = "dangling symbolic link" if os.path.islink(path) else "no such file"
        raise Unreadable(path, reason) from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise Unreadable(path, _reason(error)) from error


def _decode(file: io.BufferedReader, max_pixels: int, box: Box | None, min_side: int) -> Image.Image:
    file.seek(0)
    _check_size(_webp_size(file.read(30)), max_pixels)
    image: Image.Image = Image.open(file, formats=FORMATS)
    # Pillow rotates a TIFF upright by itself: its size when it is opened, its pixels when they are loaded.
    turned = _orientation(image) if image.format == "TIFF" else 1
    width, height = image.size[::-1] if turned in (5, 6, 7, 8) else image.size
    _check_size(image.size, max_pixels)
    x0, y0, x1, y1 = (0.0, 0.0, width, height) if box is None else _clip(box, width, height)
    if min_side and image.format in ("JPEG", "MPO"):
        scale = next((scale for scale in (8, 4, 2) if min(x1 - x0, y1 - y0) >= scale * min_side), 1)
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
    image = _rgb(image, format)
    return image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    if size[0] * size[1] > max_pixels:
        raise UserError(f"header claims {size[0]} × {size[1]} pixels, more than max_pixels={max_pixels}")


def _webp_size(head: bytes) -> tuple[int, int]:
    """Return the size that a WebP header claims: its decoder allocates memory as soon as it is opened."""
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP" or len(head) < 30:
        return 0, 0
    if head[12:16] == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + bits % 2**14, 1 + (bits >> 14) % 2**14
    return int.from_bytes(head[26:28], "little") % 2**14, int.from_bytes(head[28:30], "little") % 2**14


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


def _rgb(image: Image.Image, format: str | None) -> Image.Image:
    if image.mode == "F":
        raise UserError("floating-point pixels have no known range")
    if image.mode.startswith("I"):
        import numpy as np  # few images need it, and workers start twice as fast without it

        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise UserError("32-bit pixels outside 0…65535 have no known range")
        image = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    elif image.mode == "CMYK" and format in ("JPEG", "MPO") and "adobe" not in image.info:
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
