"""Decoding: every mode to RGB, every broken file to a reason, no memory on a header's word."""

import io
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageFile

from firstpage.data.decode import NO_MEMORY, Unreadable, decode_image
from firstpage.data.framing import Framing, decode_rows, fingerprint_files
from support.broken import FORMATS, encode_picture, make_broken, ordinary_user, picture


@pytest.fixture(scope="module")
def broken():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # an ordinary user must be able to look in
        yield Path(folder), make_broken(Path(folder))


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


def saved(folder, image, name, **options):
    image.save(folder / name, **options)
    return folder / name


def test_two_hundred_broken_files_are_each_reported_by_name(broken):
    folder, names = broken
    assert len(names) >= 200
    reasons = {}
    with ordinary_user():
        for name in names:
            with pytest.raises(Unreadable) as caught:
                decode_image(folder / name)
            assert caught.value.path == str(folder / name)
            assert "\n" not in str(caught.value)
            reasons[name] = caught.value.reason
    assert reasons["empty.jpg"] == "empty file"
    assert reasons["folder.jpg"] == reasons["to-folder.jpg"] == "a directory, not a file"
    assert reasons["fifo.jpg"] == "a FIFO, not a file"
    assert reasons["dangling.jpg"] == "dangling symbolic link"
    assert reasons["absent.jpg"] == "no such file"
    assert "symbolic links" in reasons["loop.jpg"]
    assert reasons["no-permission.jpg"] == "Permission denied"
    assert all("claims" in reasons[name] for name in names if name.startswith("bomb"))
    assert {reasons["text.jpg"], reasons["vector.jpg"]} == {
        "not an image of a known format, or its header is damaged"
    }


def test_bombs_take_no_memory(broken):
    folder, names = broken
    script = """
import os, resource, sys
from PIL import Image
from firstpage.data.decode import Unreadable, decode_image
Image.init()
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, used + 2**27))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        decode_image(path)
        print("readable", path)
    except Unreadable as error:
        if "claims" not in error.reason:
            print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**14)
"""
    paths = [str(folder / name) for name in names if name.startswith("bomb")]
    assert len(paths) >= 8
    done = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")


MEASURE = """
import sys
from PIL import Image
from firstpage.data.framing import Framing, decode_rows
Image.init()
def peak():  # in kB; getrusage counts the parent's as well
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
before = peak()
[(*_, reason)], _ = decode_rows(Framing(8), "", [sys.argv[1]], None, sys.argv[2], 0, True)
print(reason or "readable", peak() - before)
"""


def png_chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def black_png(width, height, depth, color):
    """A PNG of zeros, made without its pixels."""
    rows = bytes(height * (1 + width * depth // 8 * {0: 1, 6: 4}[color]))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", zlib.compress(rows, 1))
        + png_chunk(b"IEND", b"")
    )


def tiny_webp(side):
    """34 bytes that claim side × side pixels of one color, and are right."""
    bits = (side - 1) | (side - 1) << 14
    return b"RIFF" + struct.pack("<I", 26) + b"WEBPVP8L" + struct.pack("<IBI", 13, 0x2F, bits) + bytes(9)


LARGE = {
    # name: (content, reason, bytes that it may take: 8 per pixel if it is read)
    "line.png": (lambda: black_png(2**27 - 1, 1, 8, 0), "header claims 134217727 × 1 pixels; a side has", 0),
    "deep.png": (lambda: black_png(4096, 4096, 16, 0), "readable", 8 * 2**24),
    "alpha.png": (lambda: black_png(4096, 4096, 8, 6), "readable", 8 * 2**24),
    "claims.webp": (lambda: tiny_webp(11_585), "header claims 11585 × 11585 pixels, which take 2,304 MiB", 0),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_image_takes_little_memory_or_is_refused(tmp_path, name):
    content, expected, allowed = LARGE[name]
    arguments = [write(tmp_path, name, content()), write(tmp_path, "pixels", b"")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    reason, _, peak = done.stdout.rpartition(" ")
    assert reason.startswith(expected)
    assert int(peak) * 1024 < allowed + 2**26


def many_scans(scans, side=4000):
    """A progressive JPEG whose last scan is repeated."""
    buffer = io.BytesIO()
    Image.new("L", (side, side)).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:-2] + content[last:-2] * scans + content[-2:]


def test_a_jpeg_of_very_many_scans_is_unreadable(tmp_path):
    assert decode_image(write(tmp_path, "a.jpg", many_scans(2)), min_side=64).size == (500, 500)
    with pytest.raises(Unreadable, match="progressive JPEG of 1,006 scans and 4000 × 4000 pixels"):
        decode_image(write(tmp_path, "b.jpg", many_scans(1000)))
    with pytest.raises(Unreadable, match="more than 10,000 segments"):
        decode_image(write(tmp_path, "c.jpg", b"\xff\xd8" + b"\xff\xfe\0\2" * 20_000))
    with pytest.raises(Unreadable, match="more than 262,144 chunks"):
        decode_image(write(tmp_path, "d.png", b"\x89PNG\r\n\x1a\n" + png_chunk(b"tEXt", b"") * 2**18))


def test_what_follows_the_end_of_a_jpeg_does_not_count(tmp_path):
    video = b"\xff\xda\0\2" * 20_000  # as phones append to photographs
    assert decode_image(write(tmp_path, "a.jpg", many_scans(0, 64) + video)).size == (64, 64)


def test_a_file_larger_than_any_photograph_is_not_read(tmp_path):
    path = write(tmp_path, "sparse.jpg", encode_picture("JPEG"))
    os.truncate(path, 2**32)
    with pytest.raises(Unreadable, match="file of 4,096 MiB; at most 512 are read"):
        decode_image(path)
    assert fingerprint_files(str(tmp_path), ["sparse.jpg"]) == [""]


@pytest.mark.parametrize("name", ["lzw.tif", "raw.tif", "a.png", "baseline.jpg"])
def test_a_file_that_shrinks_while_it_is_read_is_harmless(tmp_path, name):
    format, options = FORMATS[name]
    path = write(tmp_path, name, encode_picture(format, **options))
    script = """
import os, sys
from PIL import ImageFile
from firstpage.data.decode import decode_image
load_prepare = ImageFile.ImageFile.load_prepare
def shrink(self):
    os.truncate(sys.argv[1], 10)
    load_prepare(self)
ImageFile.ImageFile.load_prepare = shrink
print(decode_image(sys.argv[1]).size)
"""
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "(120, 90)\n")


@pytest.mark.parametrize("resize", ["squash", "shorter", "pad"])
def test_what_fails_in_resizing_is_the_fault_of_the_image(tmp_path, monkeypatch, resize):
    saved(tmp_path, picture(), "a.png")
    target = write(tmp_path, "pixels", b"")
    monkeypatch.setattr(Image.Image, "resize", lambda *_, **__: bytearray(2**62))
    records, _ = decode_rows(Framing(8, resize), str(tmp_path), ["a.png"], None, str(target), 0, False)
    assert [reason for *_, reason in records] == [NO_MEMORY]
    assert target.read_bytes() == bytes(Framing(8, resize).row_bytes)


def test_images_converted_in_strips_are_equal_to_those_converted_at_once(tmp_path, monkeypatch):
    image = picture(120, 90)
    image.putalpha(image.getchannel("R"))
    palette = image.convert("RGB").quantize(16)
    deep = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 250)
    paths = [
        saved(tmp_path, image, "rgba.png"),
        saved(tmp_path, palette, "p.png", transparency=bytes(range(0, 256, 16))),
        saved(tmp_path, palette, "p.gif", transparency=3),
        saved(tmp_path, deep, "deep.png"),
        saved(tmp_path, image.convert("CMYK"), "cmyk.jpg"),
    ]
    at_once = [decode_image(path).tobytes() for path in paths]
    monkeypatch.setattr("firstpage.data.decode.STRIP", 1000)
    assert [decode_image(path).tobytes() for path in paths] == at_once


@pytest.mark.parametrize("name", FORMATS)
def test_a_cut_file_is_unreadable_or_loses_no_pixel(tmp_path, name):
    format, options = FORMATS[name]
    whole = encode_picture(format, **options)
    expected = decode_image(write(tmp_path, name, whole)).tobytes()
    unreadable = 0
    ends = range(len(whole) // 50, len(whole), max(1, len(whole) // 150))
    for end in [*ends, len(whole) - 2, len(whole) - 1]:
        path = write(tmp_path, name, whole[:end])
        try:
            assert decode_image(path).tobytes() == expected  # only an end marker is missing
        except Unreadable:
            unreadable += 1
    assert unreadable > 140


def test_a_cut_jpeg_is_unreadable_even_where_a_library_told_pillow_to_accept_it(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(Unreadable, match="truncated"):
        decode_image(write(tmp_path, "a.jpg", encode_picture("JPEG")[:-200]))
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


@pytest.mark.parametrize("error", [MemoryError(), OSError("out of memory error when reading image file")])
def test_want_of_memory_is_one_reason(tmp_path, monkeypatch, error):
    def fails(*_):
        raise error

    monkeypatch.setattr(ImageFile.ImageFile, "load", fails)
    with pytest.raises(Unreadable) as caught:
        decode_image(saved(tmp_path, picture(), "a.png"))
    assert caught.value.reason == NO_MEMORY


def test_max_bytes_is_compared_with_what_the_header_claims(tmp_path):
    path = saved(tmp_path, picture(120, 90), "a.jpg")
    cost = 120 * 90 * 8 + path.stat().st_size
    assert decode_image(path, max_bytes=cost).size == (120, 90)
    with pytest.raises(
        Unreadable, match="header claims 120 × 90 pixels, which take 0 MiB to decode; max_bytes"
    ):
        decode_image(path, max_bytes=cost - 1)


UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.tif", "a.jpg"])
def test_exif_orientation(tmp_path, name, orientation):
    image = picture(24, 16)
    plain = saved(tmp_path, image, "plain-" + name, lossless=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = saved(tmp_path, image, name, lossless=True, exif=exif)
    expected = UPRIGHT[orientation](np.asarray(decode_image(plain)))
    np.testing.assert_array_equal(np.asarray(decode_image(turned)), expected)


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "raw.tif", "lzw.tif"])
def test_a_box_is_of_the_file_as_stored_in_every_format(tmp_path, name, orientation):
    image, options = picture(40, 20), {"compression": "tiff_lzw"} if name == "lzw.tif" else {}
    plain = np.asarray(decode_image(saved(tmp_path, image, "plain-" + name, **options)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = decode_image(saved(tmp_path, image, name, exif=exif, **options), box=(30, 0, 40, 8))
    np.testing.assert_array_equal(np.asarray(turned), UPRIGHT[orientation](plain[:8, 30:]))


def test_broken_exif_does_not_make_pixels_unreadable(tmp_path):
    path = saved(tmp_path, picture(), "a.jpg", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff broken")
    assert decode_image(path).size == (120, 90)


def test_grayscale_one_bit_and_sixteen_bit(tmp_path):
    ramp = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    expected = np.repeat((ramp // 257).astype(np.uint8)[..., None], 3, axis=2)
    for name in ("a.png", "a.tif"):
        deep = decode_image(saved(tmp_path, Image.fromarray(ramp), name))
        np.testing.assert_array_equal(np.asarray(deep), expected)
    pgm = b"P5 16 16 65535\n" + ramp.astype(">u2").tobytes()
    np.testing.assert_array_equal(np.asarray(decode_image(write(tmp_path, "a.pgm", pgm))), expected)
    gray = Image.fromarray((ramp // 257).astype(np.uint8))
    np.testing.assert_array_equal(np.asarray(decode_image(saved(tmp_path, gray, "gray.png"))), expected)
    bits = np.asarray(
        decode_image(saved(tmp_path, gray.point(lambda v: 255 * (v > 99)).convert("1"), "bits.png"))
    )
    np.testing.assert_array_equal(bits, np.where(expected > 99, 255, 0))


def test_pixels_without_a_known_range_are_unreadable(tmp_path):
    with pytest.raises(Unreadable, match="floating-point"):
        decode_image(saved(tmp_path, Image.fromarray(np.ones((4, 4), np.float32)), "a.tif"))
    with pytest.raises(Unreadable, match="32-bit"):
        decode_image(saved(tmp_path, Image.fromarray(np.full((4, 4), 70_000, np.int32)), "b.tif"))


def test_transparency_is_laid_over_white(tmp_path):
    half = decode_image(saved(tmp_path, Image.new("RGBA", (2, 2), (200, 0, 0, 51)), "rgba.png"))
    assert half.getpixel((0, 0)) == (244, 204, 204)  # 20 % of the color, 80 % of white
    assert decode_image(saved(tmp_path, Image.new("LA", (2, 2), (0, 0)), "la.png")).getpixel((0, 0)) == (
        255,
        255,
        255,
    )
    palette = Image.new("P", (2, 1))
    palette.putpalette([9, 8, 7, 200, 100, 50])
    palette.putdata([0, 1])
    for name in ("p.png", "p.gif"):
        image = decode_image(saved(tmp_path, palette, name, transparency=0))
        assert [image.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (200, 100, 50)]
    opaque = decode_image(saved(tmp_path, palette, "opaque.png"))
    assert opaque.getpixel((0, 0)) == (9, 8, 7)
    keyed = decode_image(
        saved(tmp_path, Image.new("RGB", (2, 2), (1, 2, 3)), "key.png", transparency=(1, 2, 3))
    )
    assert keyed.getpixel((0, 0)) == (255, 255, 255)


def test_cmyk_with_and_without_adobes_inversion(tmp_path):
    cmyk = picture().convert("CMYK")
    adobe = saved(tmp_path, cmyk, "adobe.jpg", quality=100)
    expected = np.asarray(cmyk.convert("RGB")).astype(int)
    assert np.abs(np.asarray(decode_image(adobe)) - expected).mean() < 3
    inverted = io.BytesIO()
    Image.fromarray(255 - np.asarray(cmyk), "CMYK").save(inverted, "JPEG", quality=100)
    content = inverted.getvalue()
    marker = content.index(b"\xff\xee")
    plain = content[:marker] + content[marker + 2 + int.from_bytes(content[marker + 2 : marker + 4], "big") :]
    assert b"Adobe" not in plain
    assert np.abs(np.asarray(decode_image(write(tmp_path, "plain.jpg", plain))) - expected).mean() < 3
    tiff = saved(tmp_path, cmyk, "cmyk.tif")
    np.testing.assert_array_equal(np.asarray(decode_image(tiff)), expected)


def test_a_large_jpeg_is_decoded_smaller_but_never_below_min_side(tmp_path):
    path = saved(tmp_path, picture(1600, 1200), "a.jpg", quality=95)
    assert decode_image(path).size == (1600, 1200)
    assert decode_image(path, min_side=601).size == (1600, 1200)
    assert decode_image(path, min_side=600).size == (800, 600)
    assert decode_image(path, min_side=10).size == (200, 150)
    assert decode_image(path, min_side=300, box=(0, 0, 800, 600)).size == (400, 300)
    small = np.asarray(decode_image(path, min_side=512).resize((256, 256), Image.Resampling.BILINEAR)).astype(
        int
    )
    full = np.asarray(decode_image(path).resize((256, 256), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(small - full).mean() < 1
    with pytest.raises(Unreadable, match="truncated"):
        decode_image(write(tmp_path, "cut.jpg", path.read_bytes()[:-3000]), min_side=10)


def test_a_box_is_in_pixels_of_the_file_and_clipped_to_it(tmp_path):
    image = picture(40, 30)
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.asarray(image)
    plain, turned = saved(tmp_path, image, "a.png"), saved(tmp_path, image, "b.png", exif=exif)
    np.testing.assert_array_equal(np.asarray(decode_image(plain, box=(4, 5, 20, 15))), pixels[5:15, 4:20])
    np.testing.assert_array_equal(np.asarray(decode_image(plain, box=(-9, 20.4, 99, 99))), pixels[20:])
    np.testing.assert_array_equal(
        np.asarray(decode_image(turned, box=(4, 5, 20, 15))), np.rot90(pixels[5:15, 4:20], -1)
    )
    for box in [(50, 0, 60, 9), (9, 9, 9, 12), (float("nan"),) * 4]:
        with pytest.raises(Unreadable, match="contains no pixel of 40 × 30"):
            decode_image(plain, box=box)


def test_symbolic_links_to_images_are_followed(tmp_path):
    saved(tmp_path, picture(), "a.jpg")
    (tmp_path / "link.jpg").symlink_to("a.jpg")
    assert decode_image(tmp_path / "link.jpg").size == (120, 90)
    assert (
        fingerprint_files(str(tmp_path), ["link.jpg"]) == fingerprint_files(str(tmp_path), ["a.jpg"]) != [""]
    )


def test_unreadable_survives_the_way_from_a_worker():
    error = pickle.loads(pickle.dumps(Unreadable("a\nb.jpg", "empty file")))
    assert (error.path, error.reason, str(error)) == ("a\nb.jpg", "empty file", r"'a\nb.jpg': empty file")


def test_names_no_system_call_accepts_are_unreadable_too():
    for path in ("a\0b.jpg", "a" * 300 + ".jpg"):
        with pytest.raises(Unreadable):
            decode_image(path)
        assert fingerprint_files("", [path]) == [""]


@pytest.mark.parametrize(
    "options", [{}, {"no_jp2": True}, {"tile_size": (32, 32)}, {"quality_layers": [30, 9]}]
)
def test_a_jpeg_2000_is_read_whole_or_not_at_all(tmp_path, options):
    photo = Image.linear_gradient("L").resize((90, 70)).convert("RGB")
    file = tmp_path / "a.jp2"
    photo.save(file, **options)
    whole = file.read_bytes()
    assert ImageChops.difference(decode_image(file), photo).getextrema()[0][1] < 40
    for length in [*range(1, 300, 7), *range(300, len(whole), 97), len(whole) - 1]:
        for filling in (b"", bytes(len(whole) - length)):
            file.write_bytes(whole[:length] + filling)
            with pytest.raises(Unreadable):
                decode_image(file)


HEIF = """
from PIL import Image, ImageFile
class Heif(ImageFile.ImageFile):
    format = "HEIF"
    def _open(self):
        self.fp.read(12)
        self._size, self._mode = (4, 2), "RGB"
        self.tile = [("raw", (0, 0, 4, 2), 12, ("RGB", 0, 1))]
def register_heif_opener():
    Image.register_open("HEIF", Heif, lambda head: head[4:8] == b"ftyp")
"""


@pytest.mark.parametrize("installed", [True, False])
def test_photos_of_phones_are_read_if_the_extra_is_there(tmp_path, installed):
    (tmp_path / "photos/auk").mkdir(parents=True)
    (tmp_path / "photos/auk/1.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(range(24)))
    (tmp_path / "photos/auk/2.jp2").touch()
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/pillow_heif.py").write_text(HEIF if installed else "raise ImportError")
    code = """
import sys, warnings
warnings.simplefilter("ignore")
if sys.argv[1] == "False":
    import importlib.util
    found = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "pillow_heif" else found(name, *rest)
from firstpage.data import read
from firstpage.data.decode import Unreadable, decode_image
print(read("photos").paths, read("photos").unread)
try:
    print(decode_image("photos/auk/1.heic").getpixel((1, 0)))
except Unreadable as error:
    print(error)
"""
    paths = os.pathsep.join([str(tmp_path / "plugins"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code, str(installed)],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == (
        ["['auk/1.heic', 'auk/2.jp2'] {}", "(3, 4, 5)"]
        if installed
        else [
            "['auk/2.jp2'] {'.heic': 1}",
            "photos/auk/1.heic: a HEIC image: pip install 'firstpage[heif]' to read it, or convert it to "
            "JPEG",
        ]
    )


@pytest.mark.parametrize("size", [(9, 6), (6, 9), (7, 6), (6, 8), (6, 6)])
def test_a_canvas_has_the_image_in_its_corner_and_zeros_beside_it(size):
    pixels = np.random.default_rng(0).integers(1, 256, (size[1], size[0], 3), dtype=np.uint8)
    canvas = np.frombuffer(Framing(6).to_canvas(Image.fromarray(pixels)), np.uint8).reshape(6, 9, 3)
    lying = pixels.transpose(1, 0, 2) if size[1] > 6 else pixels
    assert (canvas[:, : lying.shape[1]] == lying).all()
    assert not canvas[:, lying.shape[1] :].any()
