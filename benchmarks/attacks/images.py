"""Image files: mutated, truncated, zero-filled, and bombs."""

import io
import os
import struct
import sys
import threading
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from attacks import HANG, Fault, Place, mutate
from firstpage.data import Catalog, PixelStore
from firstpage.data.check import check_dataset
from firstpage.data.decode import decode_image

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from support.broken import FORMATS, bombs, encode_picture, picture


@cache
def samples() -> dict[str, bytes]:
    """Return sound files of every format and of the odder modes, by name."""
    files = {name: encode_picture(format, **options) for name, (format, options) in FORMATS.items()}
    colors, deep = picture(), Image.fromarray(np.arange(120 * 90, dtype=np.uint16).reshape(90, 120) * 6)
    frames = [picture(seed=seed).convert("P") for seed in range(3)]
    more: dict[str, tuple[str, Image.Image, dict[str, object]]] = {
        "cmyk.jpg": ("JPEG", colors.convert("CMYK"), {}),
        "gray.jpg": ("JPEG", colors.convert("L"), {"quality": 30}),
        "deep.png": ("PNG", deep, {}),
        "palette.png": ("PNG", colors.convert("P"), {"transparency": 0}),
        "alpha.webp": ("WEBP", colors.convert("RGBA"), {}),
        "cmyk.tif": ("TIFF", colors.convert("CMYK"), {"compression": "jpeg"}),
        "a.ppm": ("PPM", colors, {}),
        "bits.pbm": ("PPM", colors.convert("1"), {}),
        "moving.gif": ("GIF", frames[0], {"save_all": True, "append_images": frames[1:]}),
        "moving.webp": ("WEBP", colors, {"save_all": True, "append_images": [picture(seed=1)]}),
        "moving.png": ("PNG", colors, {"save_all": True, "append_images": [picture(seed=1)]}),
    }
    for name, (format, image, options) in more.items():
        buffer = io.BytesIO()
        image.save(buffer, format, **options)
        files[name] = buffer.getvalue()
    return files


def png(width: int, height: int, bits: int) -> bytes:
    """Return a gray PNG of any size: all black, so that it is small."""

    def chunk(name: bytes, content: bytes) -> bytes:
        ends = struct.pack(">I", len(content)), struct.pack(">I", zlib.crc32(name + content))
        return ends[0] + name + content + ends[1]

    packer, pixels = zlib.compressobj(1), (1 + width * bits // 8) * height
    rows = b"".join(packer.compress(bytes(2**20)) for _ in range(pixels // 2**20))
    rows += packer.compress(bytes(pixels % 2**20)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def tiny_webp(width: int = 16_384, height: int = 8_192) -> bytes:
    """Return a lossless WebP of 34 bytes and any size: every pixel takes no bit."""
    size, codes = (width - 1) | (height - 1) << 14, 0b00010001000100010001  # five codes of one symbol
    body = b"WEBPVP8L" + struct.pack("<IB", 14, 0x2F) + (size | codes << 35).to_bytes(13, "little")
    return b"RIFF" + struct.pack("<I", len(body)) + body


def many_scans(scans: int, side: int = 8000) -> bytes:
    """Return a progressive JPEG whose last scan comes that many times."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), "gray").save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + data[-2:]


def cut_while_read(path: Path) -> None:
    """Truncate a TIFF and bring it back, again and again, while it is decoded."""
    picture(2000, 1500).save(path, compression="tiff_lzw")
    content, done = path.read_bytes(), threading.Event()

    def change() -> None:
        while not done.wait(0.001):
            os.truncate(path, len(content) // 9)
            done.wait(0.001)
            path.write_bytes(content)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20):
            inspect(path, lambda seconds: None, changing=True)
    finally:
        done.set()
        thread.join()


def sparse(path: Path) -> None:
    """Make a file of 64 GB that begins like a JPEG and takes no space."""
    path.write_bytes(samples()["baseline.jpg"][:600])
    os.truncate(path, 2**36)


def writes(content: Callable[[], bytes]) -> Callable[[Path], None]:
    """Return what writes a file of this content."""
    return lambda path: path.write_bytes(content()) and None


BOMBS: list[tuple[str, Callable[[Path], None]]] = [
    ("wide.png", writes(lambda: png(2**27 - 1, 1, 8))),
    ("tiny.webp", writes(tiny_webp)),
    ("deep.png", writes(lambda: png(8192, 16383, 16))),
    ("fifo.jpg", os.mkfifo),
    ("folder.jpg", os.mkdir),
    ("zero.png", lambda path: path.symlink_to("/dev/zero")),
    ("loop.gif", lambda path: path.symlink_to(path.name)),
    ("changing.tif", cut_while_read),
    ("sparse.jpg", sparse),
    ("scans.jpg", writes(lambda: many_scans(1000))),
    ("high.png", writes(lambda: png(8, 2**24, 8))),
    ("bits.png", writes(lambda: png(2**27 - 8, 1, 1))),
    *((name, writes(lambda name=name: bombs()[name])) for name in bombs()),  # type: ignore[misc]
    *((f"11000-{name}", writes(lambda name=name: bombs(11_000)[name])) for name in bombs()),  # type: ignore[misc]
]


def images(place: Place) -> None:
    """Attack decoding, the check and the pixel store with one file."""
    bomb = place.crafted(BOMBS)
    name, make = bomb or place.lots.choice(list(samples().items()))
    path = place.folder / "auk" / name
    path.parent.mkdir()
    if callable(make):
        make(path)
    else:
        lots, share = place.lots, place.lots.random()
        cut = make[: lots.randrange(len(make))]
        path.write_bytes(
            cut + bytes(len(make) - len(cut)) * (share < 0.1) if share < 0.2 else mutate(lots, make)
        )
    if name != "changing.tif":
        inspect(path, place.beat)
    if place.sampled:
        place.command("data", "check", place.folder)


def inspect(path: Path, beat: Callable[[float], object], changing: bool = False) -> None:
    """Decode, check and store one file: nothing escapes its row, and all three agree on it."""
    catalog = Catalog("hostile", path.parent, [path.name], np.zeros(1, np.int64), ["auk"], {})
    beat(HANG)
    report = check_dataset(catalog, workers=0, progress=False)
    report.text(), report.json()
    beat(HANG)
    store = PixelStore.build(catalog, path.parent.parent / "stores", size=16, workers=0, progress=False)
    beat(HANG)
    reasons = [report.unreadable.get(path.name), store.unreadable.get(0), None]
    try:
        decode_image(path)
    except ValueError as error:
        reasons[2] = str(error)
    if len(set(map(bool, reasons))) > 1 and not changing:
        raise Fault(f"check, store and decode_image disagree: {reasons}")


def cut(place: Place) -> None:
    """Lose the end of a sound image: it is unreadable, or the check says that it may be cut."""
    lots = place.lots
    names = [name for name in samples() if name.endswith(("jpg", "png", "webp", "avif", "gif"))]
    name = lots.choice(names)
    whole = samples()[name]
    end = int(len(whole) * lots.uniform(0.25, 0.6))
    tails = [bytes(len(whole) - end), {"jpg": b"\xff\xd9", "gif": b"\x00;"}.get(name.split(".")[1], b"")]
    path = place.folder / name
    path.write_bytes(whole)
    sound = np.asarray(decode_image(path), np.int16)
    path.write_bytes(whole[:end] + lots.choice(tails))
    catalog = Catalog("cut", place.folder, [name], np.zeros(1, np.int64), ["auk"], {})
    report = check_dataset(catalog, workers=0, progress=False)
    if not report.unreadable and "cut" not in report.text().replace(str(place.folder), ""):
        lost = np.asarray(decode_image(path), np.int16)[-len(sound) // 4 :]
        if lost.std((0, 1)).max() < 2 < np.abs(sound[-len(sound) // 4 :] - lost).mean():
            raise Fault(
                f"{name} cut at {end} of {len(whole)} bytes, its last quarter flat, passes in silence"
            )
