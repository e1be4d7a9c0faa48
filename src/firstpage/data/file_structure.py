"""The structure of image files, read from their bytes without decoding them."""

import re
import zlib
from collections.abc import Iterator

from firstpage.errors import UserError

# Within compressed data, 0xFF is followed by 0 or by a restart marker (0xD0…0xD7).
_JPEG_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_MAX_SEGMENTS = 10_000  # of a JPEG: 600 MB of metadata
_MAX_CHUNKS = 2**18  # of a PNG: 2 GB in the usual chunks of 8 kB


def webp_size(content: bytes) -> tuple[int, int]:
    """Return the width and height that a WebP header claims; (0, 0) for other files.

    The decoder of WebP allocates memory as soon as a file is opened.

    >>> webp_size(b"RIFF    WEBPVP8X" + bytes(8) + bytes([9, 0, 0, 4, 0, 0]))
    (10, 5)
    """
    head = content[:30]
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP" or len(head) < 30:
        return 0, 0
    if head[12:16] == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + bits % 2**14, 1 + (bits >> 14) % 2**14
    return int.from_bytes(head[26:28], "little") % 2**14, int.from_bytes(head[28:30], "little") % 2**14


def jpeg_scans(content: bytes) -> int:
    """Return the number of scans of a JPEG: 1 if it is decoded line by line, and more if it is progressive.

    A decoder runs through the whole image for each scan, and keeps all its coefficients in memory.

    >>> import io
    >>> from PIL import Image
    >>> for progressive in (False, True):
    ...     file = io.BytesIO()
    ...     Image.new("RGB", (9, 9)).save(file, "JPEG", progressive=progressive)
    ...     print(jpeg_scans(file.getvalue()))
    1
    10
    """
    scans, progressive, components = 0, False, 0
    for marker, segment in _jpeg_segments(content):
        if marker == 0xDA:
            scans += 1
            if scans == 1 and not progressive and segment[2] == components:
                return 1  # it contains all components, so that no further scan is read
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            progressive, components = marker % 4 == 2, segment[7]
    return scans


def _jpeg_segments(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the marker of each segment of a JPEG and 16 bytes that follow it, up to the end marker."""
    position = 0
    for _ in range(_MAX_SEGMENTS):
        match = _JPEG_MARKER.search(content, position)
        if match is None or content[match.end() - 1] == 0xD9:  # what follows the end is not part of the image
            return
        marker, position = content[match.end() - 1], match.end()
        if marker not in (0x01, 0xD8):  # these have no content
            segment = content[position : position + 16].ljust(16, b"\0")
            yield marker, segment
            position += max(2, int.from_bytes(segment[:2]))
    raise UserError(f"has more than {_MAX_SEGMENTS:,} segments")


def _lacks_scans(content: bytes) -> bool:
    """Return whether a progressive JPEG ends before all bits of all its coefficients have come."""
    missing: dict[int, list[int]] = {}  # for each component, the bits of its 64 coefficients that are missing
    for marker, segment in _jpeg_segments(content):
        if marker == 0xDA and segment[2] <= 4:
            last = 3 + 2 * segment[2]
            first, end, bits = segment[last], segment[last + 1] + 1, segment[last + 2] % 16
            for component in segment[3:last:2]:
                coefficients = missing.setdefault(component, [16] * 64)
                coefficients[first:end] = [bits] * (end - first)
    return any(any(coefficients) for coefficients in missing.values())


def check_png(content: bytes) -> None:
    """Compare the pixel data of a PNG with its checksums, which Pillow ignores.

    >>> check_png(bytes(8) + bytes([0, 0, 0, 1]) + b"IDAT?" + bytes(4))
    Traceback (most recent call last):
    ...
    firstpage.errors.UserError: damaged: wrong checksum at byte 8
    """
    view, position = memoryview(content), 8
    for _ in range(_MAX_CHUNKS):
        name = content[position + 4 : position + 8]
        end = position + 8 + int.from_bytes(content[position : position + 4])
        if len(name) < 4 or name == b"IEND":
            return
        # Decoding finds out whether data is missing.
        complete = name == b"IDAT" and end + 4 <= len(content)
        if complete and zlib.crc32(view[position + 4 : end]) != int.from_bytes(view[end : end + 4]):
            raise UserError(f"damaged: wrong checksum at byte {position:,}")
        position = end + 4
    raise UserError(f"has more than {_MAX_CHUNKS:,} chunks")


def is_jpeg2000(content: bytes) -> bool:
    r"""Return whether a file is a JPEG 2000: boxes, or a bare codestream.

    >>> is_jpeg2000(b"\xff\x4f\xff\x51"), is_jpeg2000(b"\xff\xd8\xff\xe0")
    (True, False)
    """
    return content[:4] == b"\xff\x4f\xff\x51" or content[4:12] == b"jP  \r\n\x87\n"


def check_jpeg2000(content: bytes) -> None:
    r"""Follow the parts of a JPEG 2000 to its end marker: without them a decoder returns a blank image.

    >>> check_jpeg2000(b"\xff\x4f\xff\x51\x00\x02")
    Traceback (most recent call last):
    ...
    firstpage.errors.UserError: truncated: the JPEG 2000 data ends at byte 6
    """
    position = _codestream_start(content) + 2
    for _ in range(_MAX_SEGMENTS):
        marker = content[position : position + 2]
        if marker == b"\xff\xd9":
            return
        length = int.from_bytes(content[position + 2 : position + 4])
        if marker == b"\xff\x90":  # a tile part, with all its data; the last one may leave its length open
            length = int.from_bytes(content[position + 6 : position + 10]) - 2
            if length == -2 and content.find(b"\xff\xd9", position + 12) > 0:
                return
        if len(marker) < 2 or position + 2 + length + 2 > len(content):
            raise UserError(f"truncated: the JPEG 2000 data ends at byte {len(content):,}")
        if marker[0] != 0xFF or length < 0:
            raise UserError(f"damaged: no JPEG 2000 data at byte {position:,}")
        position += 2 + length
    raise UserError(f"has more than {_MAX_SEGMENTS:,} segments")


def _codestream_start(content: bytes) -> int:
    """Return where the codestream of a JPEG 2000 begins: at once, or in a box."""
    if content[:2] == b"\xff\x4f":
        return 0
    position = 0
    for _ in range(_MAX_SEGMENTS):
        length, name = int.from_bytes(content[position : position + 4]), content[position + 4 : position + 8]
        head = 8
        if length == 1:
            length, head = int.from_bytes(content[position + 8 : position + 16]), 16
        if name == b"jp2c":
            return position + head
        if len(name) < 4 or length < head:
            break
        position += length
    raise UserError("truncated: a JPEG 2000 file without image data")


def sign_of_cut(content: bytes, format: str) -> str:
    """Return what suggests that a file which can be decoded lacks its end; "" if nothing does.

    Interrupted downloads often have the right size and zeros at the end, and some decoders accept these.

    Args:
        content: The file.
        format: Pillow's name of its format.

    >>> sign_of_cut(b"GIF89a ... " + bytes(100), "GIF"), sign_of_cut(b"GIF89a ... ;", "GIF")
    ('its end marker is missing', '')
    >>> sign_of_cut(b"pixels" + bytes(100), "AVIF")
    'its last 100 bytes are zero'
    """
    if format == "GIF":
        return "" if content.rstrip(b"\0").endswith(b";") else "its end marker is missing"
    if format == "WEBP":
        content = content[: 8 + int.from_bytes(content[4:8], "little")]  # without what was appended
    zeros = len(content) - len(content.rstrip(b"\0"))
    if format in ("JPEG", "MPO"):
        if zeros >= 64 and content.rfind(b"\xff\xd9") < content.rfind(b"\xff\xda"):
            return "its end marker is missing"
        return "scans are missing" if jpeg_scans(content) > 1 and _lacks_scans(content) else ""
    # Well compressed data never contains many zeros in a row, but black pixels and simple compression do.
    dense = format == "AVIF" or (format == "WEBP" and b"VP8L" not in content[:64])
    if zeros >= (64 if dense else max(1024, len(content) // 5)) and format != "PNG":  # which has checksums
        return f"its last {zeros:,} bytes are zero"
    return ""
