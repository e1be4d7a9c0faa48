"""Each fault that a dataset can have is found and named, and what is sound is not blamed."""

import io
import json
import os
import re
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance

from firstpage import cli
from firstpage.data import near_duplicates, read
from firstpage.data import workers as workers_module
from firstpage.data.catalog import Catalog
from firstpage.data.check import check_dataset
from firstpage.data.file_structure import sign_of_cut
from firstpage.data.near_duplicates import (
    MAX_DIFFERENCE,
    MAX_DISTANCE,
    link_near_duplicates,
    sketch,
)
from firstpage.data.splits import split_catalog
from firstpage.data.training_plan import plan_training
from firstpage.recipes.recipe import Recipe
from firstpage.recipes.settings import TrainSettings


def photo(seed, size=(160, 120)):
    """Something like a photograph: coarse and fine structure in color."""
    random = np.random.default_rng(seed)
    image = Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8)).resize(
        size, Image.Resampling.BICUBIC
    )
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        x, y, radius = random.integers(0, size[0]), random.integers(0, size[1]), random.integers(4, 25)
        draw.ellipse((x, y, x + radius, y + radius), tuple(random.integers(0, 256, 3).tolist()))
    return image


def save(image, file, **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file, **options)


def encode_picture(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


SMALL = Recipe().changed(["batch.size=3", "batch.images_per_class=2"])  # the copies here are small


def checked(root, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check_dataset(read(root), **{"workers": 0, "progress": False, "recipe": SMALL} | options)


def table(root, rows):
    """A catalog of (path, label, splits)."""
    paths, labels, splits = zip(*rows, strict=True)
    names = sorted({name for row in splits for name in row})
    return Catalog(
        "table",
        root,
        list(paths),
        np.array(labels),
        [f"class {label}" for label in range(max(labels) + 1)],
        {name: np.array([row for row, of in enumerate(splits) if name in of]) for name in names},
    )


def groups(found):
    return [same.paths for same in found]


def links_of_brute_force(hashes, colors):
    """From each image to the first one that near duplicates connect it with; colors are alike if equal."""
    first = list(range(len(hashes)))
    for left in range(len(hashes)):
        for right in range(left + 1, len(hashes)):
            distance = (int(hashes[left]) ^ int(hashes[right])).bit_count()
            if distance <= MAX_DISTANCE and colors[left] == colors[right] and first[left] != first[right]:
                low, high = sorted((first[left], first[right]))
                first = [low if row == high else row for row in first]
    return [[low, row] for row, low in enumerate(first) if low < row]


def test_images_of_one_thumbnail_are_told_apart_by_their_details(tmp_path):
    random = np.random.default_rng(0)
    coarse = random.integers(40, 216, (8, 8)).repeat(4, 0).repeat(4, 1)  # what the thumbnail shows
    signs = random.choice([-40, 40], (2, 16, 16))
    for name, sign in zip("abc", (signs[0], signs[1], signs[0]), strict=True):
        board = np.kron(sign, [[1, -1], [-1, 1]])  # of no brightness in any block of the thumbnail
        pixels = (coarse + board).repeat(4, 0).repeat(4, 1).astype(np.uint8)
        Image.fromarray(np.stack([pixels] * 3, 2)).save(tmp_path / f"{name}.png")
    Image.open(tmp_path / "c.png").save(tmp_path / "c.webp", lossless=True)
    paths = ["a.png", "b.png", "c.webp"]
    codes, thumbnails = zip(*(sketch(Image.open(tmp_path / path)) for path in paths), strict=True)
    colors = np.frombuffer(b"".join(thumbnails), np.uint8).reshape(3, 192)
    assert len(link_near_duplicates(np.array(codes, np.uint64), colors)) == 2  # by these all are alike
    catalog = Catalog("x", tmp_path, paths, np.array([0, 1, 0]), ["auk", "wren"], {})
    report = check_dataset(catalog, workers=0, progress=False)
    assert [group.paths for group in report.near_duplicates] == [["a.png", "c.webp"]]
    assert not report.two_labels


@pytest.mark.parametrize("seed", range(4))
def test_near_duplicates_are_those_of_brute_force(seed, monkeypatch):
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 2**64, 25, np.uint64, endpoint=False)
    # Around each, others at every distance up to 12, so that the boundary is met from both sides.
    turned = [
        int(code) ^ sum(1 << int(bit) for bit in random.choice(64, random.integers(0, 13), replace=False))
        for code in np.repeat(hashes, 6)
    ]
    hashes = random.permutation(np.concatenate([hashes, np.array(turned, np.uint64)]))
    colors = random.integers(0, 2, len(hashes))
    expected = links_of_brute_force(hashes, colors)
    assert 30 < len(expected) < 150
    thumbnails = random.integers(0, 256, (2, 192)).astype(np.uint8)[colors]
    assert link_near_duplicates(hashes, thumbnails).tolist() == expected
    monkeypatch.setattr("firstpage.data.near_duplicates._CHUNK", 50)
    monkeypatch.setattr("firstpage.data.near_duplicates._FEW", 1)
    assert link_near_duplicates(hashes, thumbnails).tolist() == expected


def nearly_one_hash(count):
    random = np.random.default_rng(0)
    bits = [1 << random.integers(0, 64, count).astype(np.uint64) for _ in range(3)]
    return bits[0] ^ bits[1] ^ bits[2]


def test_many_near_equal_images_are_compared_with_few(monkeypatch):
    """A thousand of them are half a million pairs, each met in up to four quarters."""
    compared = []
    real = near_duplicates._Images.look_alike
    monkeypatch.setattr(
        near_duplicates._Images,
        "look_alike",
        lambda images, pairs: compared.append(len(pairs)) or real(images, pairs),
    )
    thumbnails = np.tile(np.arange(192, dtype=np.uint8), (1000, 1))
    links = link_near_duplicates(nearly_one_hash(1000), thumbnails)
    assert links.tolist() == [[0, row] for row in range(1, 1000)]
    assert sum(compared) < 100 * 1000
    # Where no two look alike, no groups save comparisons, but their number is bounded.
    compared.clear()
    monkeypatch.setattr(near_duplicates, "_MOST", 10)
    thumbnails = np.random.default_rng(0).integers(0, 256, (1000, 192)).astype(np.uint8)
    assert link_near_duplicates(nearly_one_hash(1000), thumbnails).tolist() == []
    assert sum(compared) < 68 * 18 * 1000


@pytest.mark.parametrize("count", [0, 1])
def test_near_duplicates_of_nothing(count):
    assert link_near_duplicates(np.zeros(count, np.uint64), np.zeros((count, 192), np.uint8)).shape == (0, 2)


def test_links_of_many_copies_are_few():
    """Twenty thousand pictures of one hash would be 200 million pairs."""
    thumbnails = np.tile(np.arange(192, dtype=np.uint8), (20_000, 1))
    links = link_near_duplicates(np.full(20_000, 7, np.uint64), thumbnails)
    assert links.tolist() == [[0, row] for row in range(1, 20_000)]


CHANGES = {
    "compressed": lambda image: Image.open(io.BytesIO(encode_picture(image, "JPEG", quality=25))),
    "halved": lambda image: image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS),
    "enlarged": lambda image: image.resize((3 * image.width, 3 * image.height)),
    "squashed": lambda image: image.resize((image.width, image.width)),
    "brightened": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "darkened": lambda image: ImageEnhance.Brightness(image).enhance(0.85),
    "as webp": lambda image: Image.open(io.BytesIO(encode_picture(image, "WEBP", quality=50))).convert("RGB"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_copy_is_found(tmp_path, change):
    for seed in range(8):
        save(photo(seed), tmp_path / f"a/{seed}.png")
        save(CHANGES[change](photo(seed)), tmp_path / f"b/{seed}.png")
    report = checked(tmp_path)
    assert groups(report.near_duplicates) == [[f"a/{seed}.png", f"b/{seed}.png"] for seed in range(8)]
    assert groups(report.two_labels) == groups(report.near_duplicates)
    assert not any(same.identical for same in report.two_labels)
    assert report.exact_duplicates == []
    assert not report.ok


def test_different_glyphs_and_photos_are_not_blamed(glyphs_of_two, tmp_path):
    report = check_dataset(glyphs_of_two, workers=2, progress=False)
    assert report.ok
    assert (report.near_duplicates, report.exact_duplicates, report.flat) == ([], [], [])
    assert report.text().endswith("\nOK")
    for seed in range(60):
        save(photo(seed), tmp_path / f"photos/a/{seed}.png")
    assert checked(tmp_path / "photos").near_duplicates == []


def test_the_same_cut_in_another_color_is_another_image(tmp_path):
    cut = Image.new("L", (90, 90), 255)
    ImageDraw.Draw(cut).polygon([(10, 10), (80, 25), (60, 80), (30, 70)], 0)
    # Colors of the same brightness: what the hash sees is the same picture.
    colors = {name: Image.merge("RGB", [cut.point(lambda level, low=low: max(level, low)) for low in levels])
               for name, levels in {"red": (200, 20, 20), "green": (20, 112, 20)}.items()}  # fmt: skip
    codes = {name: sketch(image) for name, image in colors.items()}
    assert (codes["red"][0] ^ codes["green"][0]).bit_count() <= MAX_DISTANCE
    for name, image in colors.items():
        save(image, tmp_path / name / "shirt.png")
        save(image.resize((60, 60)), tmp_path / name / "small.png")
    report = checked(tmp_path)
    assert groups(report.near_duplicates) == [
        [f"{name}/shirt.png", f"{name}/small.png"] for name in ("green", "red")
    ]
    assert report.two_labels == []


def test_small_things_before_an_even_sky_are_told_apart():
    """Their thumbnails differ by few levels, but by much of the little contrast there is."""
    thumbnails = np.full((3, 192), 150, np.uint8)
    thumbnails[0, 80:110] -= 20
    thumbnails[1, 95:125] -= 20
    thumbnails[2] = thumbnails[0] + 9
    difference = np.abs(thumbnails[0].astype(int) - thumbnails[1]).mean()
    assert MAX_DIFFERENCE * 6 < difference < 6
    assert link_near_duplicates(np.full(3, 9, np.uint64), thumbnails).tolist() == [[0, 2]]


def test_flat_images_are_alike_only_byte_by_byte(tmp_path):
    for level in range(0, 250, 25):
        save(Image.new("RGB", (40, 40), (level, level, level)), tmp_path / f"a/{level}.png")
    save(Image.new("RGB", (50, 50), (25, 25, 25)), tmp_path / "b/larger.png")
    save(Image.new("RGB", (40, 40), (25, 25, 25)), tmp_path / "b/same.png")
    report = checked(tmp_path)
    assert len(report.flat) == 12
    assert report.near_duplicates == []
    assert groups(report.two_labels) == [["a/25.png", "b/same.png"]]
    assert "12 images without contrast" in report.text()


def test_two_labels_and_two_splits(tmp_path):
    for name, seed in {"train/wren/1": 1, "train/auk/2": 2, "test/owl/3": 3, "test/owl/4": 4}.items():
        save(photo(seed), tmp_path / f"{name}.png")
    save(photo(1), tmp_path / "train/auk/wren.png")  # another label, the same split
    save(photo(2), tmp_path / "test/auk/again.jpg", quality=60)  # the same label, another split
    save(photo(3), tmp_path / "train/wren/owl.png")  # both
    save(photo(4), tmp_path / "test/owl/copy.png")  # neither
    report = checked(tmp_path)
    labels = {tuple(same.paths): same.identical for same in report.two_labels}
    splits = {tuple(same.paths): same.identical for same in report.two_splits}
    wren = ("train/auk/wren.png", "train/wren/1.png")
    auk = ("train/auk/2.png", "test/auk/again.jpg")
    owl = ("train/wren/owl.png", "test/owl/3.png")
    assert labels == {wren: True, owl: True}
    assert splits == {auk: False, owl: True}
    assert groups(report.exact_duplicates) == [[*wren], [*owl], ["test/owl/4.png", "test/owl/copy.png"]]
    assert groups(report.near_duplicates) == [[*auk]]
    assert report.two_labels[0].classes == ["auk", "wren"]
    assert report.two_splits[0].splits == [["train"], ["test"]]
    text = report.text()
    assert text.startswith(
        "2 images with two labels\n  train/auk/wren.png [auk, train] = train/wren/1.png [wren,"
    )
    assert text.endswith(
        "NOT OK: 2 images with two labels, 2 images in two splits (leakage); train takes the data as it is"
    )


@pytest.mark.parametrize(
    ("first", "second", "leaks"),
    [
        (["train"], ["test"], True),
        (["train", "gallery"], ["query"], True),
        (["gallery"], ["query"], False),
        (["train", "gallery"], ["train", "gallery"], False),
        (["train", "gallery"], ["gallery"], False),
        (["train"], ["train"], False),
        (["train"], [], False),
    ],
)
@pytest.mark.parametrize("identical", [True, False])
def test_what_is_a_leak(tmp_path, first, second, leaks, identical):
    save(photo(0), tmp_path / "1.png")
    save(photo(0), tmp_path / "2.png", compress_level=6 if identical else 1)
    report = check_dataset(
        table(tmp_path, [("1.png", 0, first), ("2.png", 0, second)]), workers=0, progress=False
    )
    assert [same.identical for same in report.two_splits] == [identical] * leaks
    assert ("leakage" in report.text()) is leaks


def test_a_row_in_two_splits_is_no_leak_but_two_rows_of_a_file_are(tmp_path):
    save(photo(0), tmp_path / "1.png")
    once = check_dataset(table(tmp_path, [("1.png", 0, ["train", "gallery"])]), workers=0, progress=False)
    assert once.two_splits == []
    twice = [("1.png", 0, ["train"]), ("1.png", 1, ["test"])]
    report = check_dataset(table(tmp_path, twice), workers=0, progress=False)
    assert groups(report.two_splits) == groups(report.two_labels) == [["1.png", "1.png"]]


def png_header(width, height):
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(64))
    end = struct.pack(">I", len(data)) + b"IDAT" + data + struct.pack(">I", zlib.crc32(b"IDAT" + data))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + end


def bombs():
    """Small files whose headers claim 50,000 × 50,000 pixels or more."""
    side = 50_000
    jpeg = bytearray(encode_picture(photo(0), "JPEG"))
    frame = jpeg.index(b"\xff\xc0") + 5
    jpeg[frame : frame + 4] = struct.pack(">HH", side, side)
    bmp = (
        b"BM"
        + struct.pack("<IHHIIiiHHIIiiII", 70, 0, 0, 54, 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
        + bytes(16)
    )
    extended = b"VP8X" + struct.pack("<I", 10) + bytes(4) + 2 * (16_000 * 2).to_bytes(3, "little")
    tags = [
        (256, side),
        (257, side),
        (258, 8),
        (259, 1),
        (262, 1),
        (273, 200),
        (277, 1),
        (278, side),
        (279, 9),
    ]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return {
        "png": png_header(side, side),
        "jpg": bytes(jpeg),
        "bmp": bmp,
        "gif": b"GIF89a" + struct.pack("<HHxxxcHHHHxB", side, side, b",", 0, 0, side, side, 8) + b"\2L\1\0;",
        "webp": b"RIFF" + struct.pack("<I", len(extended) + 4) + b"WEBP" + extended,
        "tiff": b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(200),
        "ppm": b"P6 50000 50000 255\n" + bytes(64),
    }  # fmt: skip


def broken_files(folder):
    """Writes 200 broken files of all kinds; returns their names."""
    folder.mkdir(parents=True)
    sound = {kind: encode_picture(photo(1), kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")}
    files = {f"bomb.{suffix}": data for suffix, data in bombs().items()}
    files |= {f"zero {index}.jpg": b"" for index in range(10)}
    files |= {f"text {index}.png": b"<html>404 not found</html>" * (index + 1) for index in range(10)}
    files |= {f"magic {kind}.{suffix}": b"\0\xff\x13\x37" * 2 + data[8:]
              for kind, data in sound.items() for suffix in ("jpg", "png")}  # fmt: skip
    files |= {
        "two\nlines.jpg": b"",
        "böse Ωμέγα 鳥.jpg": b"x",
        "tab\t\x1b[31m.png": b"x",
        "\u202egnp.jpg": b"x",
    }
    special = ["directory.jpg", "loop.jpg", "dangling.png", "fifo.jpg", "self.png"]
    cuts = 200 - len(files) - len(special)
    for index in range(cuts):
        data = list(sound.values())[index % 6]
        # From the first byte to nine tenths: behind that, a BMP or TIFF may lack nothing but padding.
        files[f"cut {index:03}.jpg"] = data[: 1 + int(0.9 * len(data) * index / cuts)]
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "directory.jpg").mkdir()
    (folder / "loop.jpg").symlink_to("self.png")
    (folder / "self.png").symlink_to("loop.jpg")
    (folder / "dangling.png").symlink_to("nowhere.png")
    os.mkfifo(folder / "fifo.jpg")
    return [*files, *special]


@pytest.mark.parametrize("workers", [0, 2])
def test_200_broken_files_are_each_reported_by_name(tmp_path, workers):
    names = broken_files(tmp_path / "broken")
    assert len(set(names)) == 200
    save(photo(7), tmp_path / "sound/1.jpg")
    save(photo(8), tmp_path / "sound/2.png")
    report = checked(tmp_path, workers=workers)
    assert set(report.unreadable) == {f"broken/{name}" for name in names}
    assert all(reason and "\n" not in reason for reason in report.unreadable.values())
    assert json.loads(report.json())["unreadable"] == report.unreadable
    reasons = {name.removeprefix("broken/"): reason for name, reason in report.unreadable.items()}
    assert reasons["zero 3.jpg"] == "empty file"
    assert reasons["directory.jpg"] == "a directory, not a file"
    assert reasons["fifo.jpg"] == "a FIFO, not a file"
    assert reasons["dangling.png"] == "dangling symbolic link"
    assert "symbolic links" in reasons["loop.jpg"]
    assert all("header claims" in reasons[f"bomb.{suffix}"] for suffix in bombs())
    assert (report.images, report.formats) == (202, {"JPEG": 1, "PNG": 1})


def zero_tail(data):
    return data[: len(data) // 2] + bytes(len(data) - len(data) // 2)


def closed(data):
    return data[: len(data) // 2] + b"\xff\xd9"


CUT = {
    # kind: (options, damage, the sign, or "" if it is unreadable)
    "webp": ({}, zero_tail, "bytes are zero"),
    "avif": ({}, zero_tail, "bytes are zero"),
    "bmp": ({}, zero_tail, "bytes are zero"),
    "tiff": ({}, zero_tail, "bytes are zero"),
    "png": ({}, zero_tail, ""),
    "jp2": ({}, zero_tail, ""),
    "j2k": ({}, lambda data: closed(data)[:-2], ""),
    "jpeg": ({"quality": 90}, closed, "are gray"),
    "jpg": ({"quality": 90, "progressive": True}, closed, "scans are missing"),
    "gif": (
        {"save_all": True, "append_images": [photo(1), photo(2)]},
        lambda data: data[:-900],
        "end marker",
    ),
}


@pytest.mark.parametrize("kind", CUT)
def test_images_that_lack_their_end_are_noted(tmp_path, kind):
    options, damage, sign = CUT[kind]
    save(photo(0, (320, 240)), tmp_path / f"a/whole.{kind}", **options)
    cut = damage((tmp_path / f"a/whole.{kind}").read_bytes())
    (tmp_path / f"a/cut.{kind}").write_bytes(cut)
    save(Image.new("RGB", (320, 240), "white"), tmp_path / f"a/white.{kind}")
    save(Image.new("RGB", (320, 240), (128, 128, 128)), tmp_path / f"a/gray.{kind}")
    report = checked(tmp_path)
    if sign:
        assert list(report.cut) == [f"a/cut.{kind}"]
        assert sign in report.cut[f"a/cut.{kind}"]
        assert f"1 image that may be cut\n  a/cut.{kind}: its" in report.text() or kind == "jpg"
        assert report.unreadable == {}
        assert "cut" not in report.text().splitlines()[-1]
    else:
        assert report.cut == {}
        assert list(report.unreadable) == [f"a/cut.{kind}"]


def test_a_turned_jpeg_that_is_cut_is_noted(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a.jpg").write_bytes(closed(encode_picture(photo(0, (320, 240)), "JPEG", exif=exif)))
    report = check_dataset(table(tmp_path, [("a.jpg", 0, [])]), workers=0, progress=False)
    assert "are gray" in report.cut["a.jpg"]


def test_a_jpeg_filled_up_with_zeros_is_unreadable_or_noted(tmp_path):
    whole = encode_picture(photo(0), "JPEG")
    assert sign_of_cut(whole + bytes(500), "JPEG") == ""  # padding of some cameras
    assert sign_of_cut(whole[:-2] + bytes(500), "JPEG") == "its end marker is missing"


def test_a_file_that_kills_the_process_does_not_end_the_check(tmp_path):
    save(photo(0), tmp_path / "a/1.png")
    save(photo(1), tmp_path / "a/2.png")
    # Pillow decodes a PPM whose maximum is 254 by a loop in Python.
    (tmp_path / "a/slow.ppm").write_bytes(b"P6 2000 1500 254\n" + bytes(3 * 2000 * 1500))
    shorter = "import firstpage.data.worker as worker; worker.SECONDS = 0.5"
    boot = workers_module.BOOT.replace("serve(int(current))", f"{shorter}\nserve(int(current))")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers_module, "BOOT", boot)
        report = checked(tmp_path, workers=1)
    assert report.unreadable == {"a/slow.ppm": "takes more than 10 s to decode"}
    assert report.images == 3


def test_names_are_printed_in_one_line(tmp_path):
    rows = [("two\nlines.jpg", 0, []), ("ö.jpg", 0, []), ("\udcff.jpg", 0, [])]
    save(photo(0), tmp_path / "red\x1b[31m.png")
    save(photo(0), tmp_path / "blue\r.png")
    rows += [("red\x1b[31m.png", 0, []), ("blue\r.png", 1, [])]
    report = check_dataset(table(tmp_path, rows), workers=0, progress=False)
    lines = report.text().split("\n")
    assert lines[:4] == ["3 unreadable files", r"  'two\nlines.jpg': no such file", "  ö.jpg: no such file",
                         r"  '\udcff.jpg': no such file"]  # fmt: skip
    assert r"  'red\x1b[31m.png' [class 0] = 'blue\r.png' [class 1]" in lines
    assert all(line.isprintable() for line in lines)
    assert list(json.loads(report.json())["unreadable"]) == [path for path, *_ in rows[:3]]


def test_examples_are_few_and_the_rest_is_counted(tmp_path):
    rows = [(f"{index}.jpg", 0, []) for index in range(1234)]
    text = check_dataset(table(tmp_path, rows), workers=0, progress=False).text()
    assert text.count("no such file") == 5
    assert "\n  and 1,229 more\n" in text
    assert text.endswith("NOT OK: 1,234 unreadable files")


def test_counts_and_json(tmp_path):
    save(photo(0, (100, 60)), tmp_path / "train/wren/1.jpg")
    save(photo(1, (50, 80)), tmp_path / "train/wren/2.png")
    save(photo(2, (70, 70)), tmp_path / "train/wren/3.png")
    save(photo(3, (300, 200)), tmp_path / "test/auk/1.png")
    report = checked(tmp_path)
    found = json.loads(report.json())
    refusal = (
        "data: the test searches images of 1 class, so that every result is correct; "
        "use at least two test classes"
    )
    assert found == {
        "ok": False,
        "name": "folder",
        "root": str(tmp_path),
        "images": 4,
        "classes": 2,
        "splits": {"train": {"images": 3, "classes": 1}, "test": {"images": 1, "classes": 1}},
        "histogram": {"auk": 1, "wren": 3},
        "images_a_class": {"min": 1, "median": 2.0, "max": 3, "of_one_image": 1},
        "sizes": {
            "width": {"min": 50, "median": 85.0, "max": 300},
            "height": {"min": 60, "median": 75.0, "max": 200},
        },
        "formats": {"JPEG": 1, "PNG": 3},
        "unreadable": {},
        "cut": {},
        "flat": [],
        "exact_duplicates": [],
        "near_duplicates": [],
        "two_labels": [],
        "two_splits": [],
        "unread": {},
        "refusal": refusal,
        "warnings": [],
        "notes": [],
    }
    assert report.text() == (
        f"training would fail\n  {refusal}\n"
        f"folder in {tmp_path}: 4 images, 2 classes\n"
        "  train: 3 images, 1 class\n  test: 1 image, 1 class\n"
        "  images per class: min 1, median 2, max 3; 1 class of one image\n"
        "  width: min 50, median 85, max 300\n  height: min 60, median 75, max 200\n"
        "  formats: JPEG 1, PNG 3\nNOT OK: training would fail"
    )


def classes_of(root, splits, images=2, classes=2):
    """A catalog with this many classes of this many images in each split."""
    rows = [
        (f"{split}{number}{image}.png", label * classes + number, [split] if split else [])
        for label, split in enumerate(splits)
        for number in range(classes)
        for image in range(images)
    ]
    for seed, (path, *_) in enumerate(rows):
        save(photo(seed, (24, 24)), root / path)
    return table(root, rows)


@pytest.mark.parametrize(
    ("splits", "sizes", "refusal"),
    [
        (["train", "test"], {}, ""),
        ([""], {"classes": 10}, ""),
        ([""], {"classes": 1}, "1 class cannot be split into train and test; use at least four"),
        ([""], {"classes": 3}, "3 classes cannot be split into train and test; use at least four"),
        ([""], {"classes": 4}, ""),
        ([""], {"classes": 10, "images": 1}, "no test image has another image of its class to find"),
        (["train", "test"], {"images": 1}, "no test image has another image of its class to find"),
        (["trian", "test"], {}, "'table' has no train split; it has test, trian"),
        (["train", "tset"], {}, ""),  # fair selects on training classes
        (["test"], {}, ""),  # as LFW
        (["gallery", "query"], {}, ""),
        (["train"], {"classes": 10}, ""),  # as CASIA
        (["train"], {"classes": 2}, ""),
    ],
)
def test_what_training_would_refuse_is_not_ok(tmp_path, splits, sizes, refusal):
    report = check_dataset(classes_of(tmp_path, splits, **sizes), recipe=SMALL, workers=0, progress=False)
    assert refusal in report.refusal
    assert report.ok is (report.refusal == "") is (refusal == "")


@pytest.mark.parametrize(
    ("rows", "notes"),
    [
        ([("a", 0, ["train"]), ("b", 1, ["test"])], []),
        (
            [("a", 0, ["train"]), ("b", 1, ["train"]), ("c", 1, ["query"]), ("d", 2, ["query"])],
            ["1 of 2 test classes are in training, too: it is no test of new classes"],
        ),
        (
            [("a", 0, ["train"]), ("b", 1, ["tset"])],
            ["neither trained on nor tested: split 'tset'; the names are train, val, test, query, gallery"],
        ),
    ],
)
def test_shared_classes_and_unused_splits_are_told(tmp_path, rows, notes):
    report = check_dataset(table(tmp_path, rows), workers=0, progress=False)
    assert report.notes == json.loads(report.json())["notes"] == notes
    assert all(f"\n  {note}\n" in report.text() for note in notes)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=4, max_size=14), st.integers(1, 4), st.integers(0, 9))
def test_a_suggested_batch_fits_every_fold_and_the_check_says_so(sizes, per_class, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    classes = [str(number) for number in range(len(sizes))]
    catalog = Catalog("x", Path(), [str(row) for row in range(len(labels))], labels, classes, {})
    readable = np.random.default_rng(seed).random(len(labels)) > 0.1
    recipe = Recipe().changed([f"batch.images_per_class={per_class}", "train.folds=3", "batch.size=4096"])
    try:
        plan_training(recipe, catalog, readable)
    except ValueError as error:
        found = re.search(r"--set (batch.size=\d+)", str(error))
        if found:
            plan_training(recipe.changed([found[1]]), catalog, readable)


def test_folds_of_other_sizes_count_for_a_suggested_batch():
    sizes = [4, 4, 4, 4, 4, 4, 4, 1]
    labels = np.repeat(np.arange(8), sizes)
    paths = [str(row) for row in range(len(labels))]
    catalog = Catalog("x", Path(), paths, labels, list("abcdefgh"), {"train": np.arange(len(labels))})
    recipe = Recipe().changed(["train.folds=4", "batch.size=128"])
    for fold in range(4):
        with pytest.raises(ValueError, match="use at most 21 ") as error:
            plan_training(recipe.changed([f"train.fold={fold}"]), catalog)
    assert "batch.size=21" in str(error.value)


def test_too_few_images_for_a_batch_are_not_ok_and_the_suggested_size_is(tmp_path):
    catalog = classes_of(tmp_path, ["train", "test"], images=3, classes=6)
    assert check_dataset(catalog, workers=0, progress=False).ok  # a batch has what the classes give
    large = Recipe().changed(["batch.size=128"])
    report = check_dataset(catalog, recipe=large, workers=0, progress=False)
    assert "the 4 classes give only 12 images; use at most 12 (--set batch.size=12)" in report.refusal
    assert not report.ok
    fitting = Recipe().changed(["batch.size=12"])
    assert check_dataset(catalog, recipe=fitting, workers=0, progress=False).ok


def test_images_of_which_training_can_read_none():
    catalog = Catalog("x", Path(), list("abcd"), np.arange(4) // 2, ["a", "b"], {"train": np.arange(4)})
    with pytest.raises(ValueError, match="none of its 4 train images can be read; run firstpage data check"):
        split_catalog(catalog, np.zeros(4, bool), TrainSettings())


def test_kinds_that_are_not_read_are_a_fault(tmp_path):
    for number in range(8):
        for image in range(2):
            save(photo(2 * number + image), tmp_path / f"{number}/{image}.png")
    assert checked(tmp_path).ok
    (tmp_path / "0/2.heic").touch()
    report = checked(tmp_path)
    told = "1 .heic files are not read: pip install 'firstpage[heif]', or convert them to JPEG"
    assert report.text().startswith(f"1 file of unsupported formats\n  {told}\nfolder in")
    assert report.text().endswith("\nNOT OK: 1 file of unsupported formats; train takes the data as it is")
    assert json.loads(report.json())["unread"] == {".heic": 1}
    assert not report.ok


def test_the_same_whatever_the_workers(tmp_path):
    for seed in range(70):
        save(photo(seed % 60, (40, 30)), tmp_path / f"{seed % 3}/{seed}.jpg", quality=95 - seed // 2)
    reports = [checked(tmp_path, workers=workers).json() for workers in (0, 2, 2)]
    assert reports[0] == reports[1] == reports[2]
    assert len(json.loads(reports[0])["near_duplicates"]) == 10


def test_nothing_to_check(tmp_path):
    empty = Catalog("empty", tmp_path, [], np.zeros(0, np.int64), [], {})
    report = check_dataset(empty, progress=False)
    assert report.text() == f"empty in {tmp_path}: 0 images, 0 classes\nOK"
    assert json.loads(report.json())["sizes"]["width"] == {"min": None, "median": None, "max": None}
    report.figure(tmp_path / "empty.png")


def test_the_command(tmp_path, capsys):
    save(photo(0), tmp_path / "set/wren/1.png")
    save(photo(0), tmp_path / "set/auk/1.png")
    figure = tmp_path / "classes.png"

    def run(*options):
        with pytest.raises(SystemExit) as end:
            cli.main(["data", "check", str(tmp_path / "set"), *options])
        assert end.value.code == 1  # it found a fault
        return capsys.readouterr().out

    assert run().startswith("1 image with two labels\n  auk/1.png [auk] = wren/1.png [wren]\n")
    assert not figure.exists()
    found = json.loads(run("--json", "--figure", str(figure)))
    assert found["two_labels"] == [
        {
            "paths": ["auk/1.png", "wren/1.png"],
            "classes": ["auk", "wren"],
            "splits": [[], []],
            "identical": True,
        }
    ]
    with Image.open(figure) as image:
        assert image.format == "PNG"
        assert min(image.size) > 400
        assert len(image.convert("L").getcolors()) > 20
