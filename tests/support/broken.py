"""A folder of image files that are broken in two hundred ways."""

import io
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

CUTS = (1, 3, 7, 15, 25, 40, 60, 90, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, -24)
FORMATS = {
    "baseline.jpg": ("JPEG", {}),
    "progressive.jpg": ("JPEG", {"progressive": True}),
    "a.png": ("PNG", {}),
    "a.gif": ("GIF", {}),
    "a.bmp": ("BMP", {}),
    "raw.tif": ("TIFF", {}),
    "lzw.tif": ("TIFF", {"compression": "tiff_lzw"}),
    "lossy.webp": ("WEBP", {}),
    "lossless.webp": ("WEBP", {"lossless": True}),
    "a.avif": ("AVIF", {}),
}
UNREADABLE_MODE = "no-permission.jpg"


def picture(width: int = 120, height: int = 90, seed: int = 0) -> Image.Image:
    """Return smooth shapes with detail, which no codec turns into a constant."""
    coarse = np.random.default_rng(seed).integers(0, 255, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encode_picture(format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture().save(buffer, format, **options)
    return buffer.getvalue()


def bombs(side: int = 50_000) -> dict[str, bytes]:
    """Return small files whose headers claim side × side pixels."""
    jpeg, bmp, gif = encode_picture("JPEG"), encode_picture("BMP"), encode_picture("GIF")
    frame = jpeg.index(b"\xff\xc0") + 5
    descriptor = gif.index(b"\x2c\0\0\0\0") + 5
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    tags = {256: side, 257: side, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: side, 279: side * side % 2**32}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    lossless = bytearray(encode_picture("WEBP", lossless=True))
    lossless[21:25] = struct.pack("<I", 0x3FFF | 0x3FFF << 14)
    return {
        "bomb.png": b"\x89PNG\r\n\x1a\n" + chunk + encode_picture("PNG")[33:],
        "bomb.jpg": jpeg[:frame] + struct.pack(">HH", side, side) + jpeg[frame + 4 :],
        "bomb.bmp": bmp[:18] + struct.pack("<ii", side, side) + bmp[26:],
        "bomb.tif": b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + b"\0\0\0\0",
        "bomb.gif": gif[:6]
        + struct.pack("<HH", side, side)
        + gif[10:descriptor]
        + struct.pack("<HH", side, side)
        + gif[descriptor + 4 :],
        "bomb.webp": extended_webp(side),
        "bomb-below-pillows-limit.webp": extended_webp(12_000),
        "bomb-lossless.webp": bytes(lossless),
        "bomb.ppm": b"P6 %d %d 255\n" % (side, side) + bytes(64),
    }


def extended_webp(side: int) -> bytes:
    canvas = struct.pack("<I", side - 1)[:3] * 2
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + canvas + encode_picture("WEBP")[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def make_broken(folder: Path) -> list[str]:
    """Fill `folder` with files that an ordinary user cannot read as images, and return their names."""
    contents: dict[str, bytes] = dict(bombs())
    for name, (format, options) in FORMATS.items():
        whole = encode_picture(format, **options)
        for cut in CUTS:
            end = int(cut * len(whole)) if isinstance(cut, float) else cut
            contents[f"cut at {cut} {name}"] = whole[:end]
        contents[f"magic {name}"] = b"\0\1\2\3" * 4 + whole[16:]
    sound = encode_picture("JPEG")
    contents |= {
        "empty.jpg": b"",
        "one-byte.jpg": b"\xff",
        "zeros.png": bytes(5000),
        "text.jpg": b"The quick brown fox jumps over the lazy dog.\n" * 40,
        "not-found.jpg": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "vector.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
        "größe – 画像.jpg": sound[:300],
        "two\nlines.jpg": sound[:300],
        os.fsdecode(b"not-utf8-\xff.jpg"): sound[:300],
        UNREADABLE_MODE: sound,
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / UNREADABLE_MODE).chmod(0)
    (folder / "folder.jpg").mkdir()
    os.mkfifo(folder / "fifo.jpg")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "ping.jpg").symlink_to("pong.jpg")
    (folder / "pong.jpg").symlink_to("ping.jpg")
    (folder / "dangling.jpg").symlink_to("nowhere.jpg")
    (folder / "to-folder.jpg").symlink_to("folder.jpg")
    names = sorted(os.listdir(folder))
    return [*names, "absent.jpg"]


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Drop the privileges of root, who may read everything, within the context."""
    root = os.geteuid() == 0
    Image.init()  # while its plugins can still be imported
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
