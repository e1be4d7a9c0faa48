"""The check: every fault is found and named, and nothing sound is accused."""

import io
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from broken import make_broken, ordinary_user, picture
from PIL import Image

from firstpage.data.catalog import Catalog
from firstpage.data.check import check
from firstpage.data.duplicates import equal_pairs, groups, near_pairs


def checked(root, names, labels=None, classes=("x", "y"), splits=None, **options):
    labels = np.array([0] * len(names) if labels is None else labels, np.int64)
    catalog = Catalog("toy", Path(root), list(names), labels, list(classes), splits or {})
    return check(catalog, **{"workers": 0, "progress": False} | options)


def test_two_hundred_broken_files_are_each_named():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        names = make_broken(Path(folder))
        picture().save(Path(folder, "sound.jpg"))
        with ordinary_user():
            report = checked(folder, [*names, "sound.jpg"])
    assert len(names) >= 200
    assert list(report.unreadable) == list(range(len(names)))
    lines = report.text().splitlines()
    assert f"unreadable: {len(names)}" in lines
    for name, reason in zip(names, report.unreadable.values(), strict=True):
        assert f"    {name if name.isprintable() else repr(name)}: {reason}" in lines
    named = json.loads(report.json())["unreadable"]
    assert [entry["path"] for entry in named] == names
    assert report.text().encode()  # printable, though some names are not even text


def test_counts_sizes_and_formats(tmp_path):
    picture(50, 40).save(tmp_path / "a.jpg")
    picture(200, 100, seed=1).save(tmp_path / "b.png")
    picture(70, 80, seed=2).save(tmp_path / "c.jpg")
    splits = {"train": np.array([0, 1]), "test": np.array([2])}
    report = checked(tmp_path, ["a.jpg", "b.png", "c.jpg"], [0, 1, 1], splits=splits)
    lines = report.text().splitlines()
    assert lines[0] == "toy: 3 images, 2 classes, 0.00 GB; train 2, test 1"
    assert lines[1] == "images in a class: 1 to 2, median 1.5"
    assert lines[2] == "width × height: 50 × 40 to 200 × 100, median 70 × 80"
    assert lines[3] == "formats: JPEG 2, PNG 1"
    assert all(line.endswith("none") for line in lines[4:])
    about = json.loads(report.json())
    assert about["bytes"] == sum((tmp_path / name).stat().st_size for name in ("a.jpg", "b.png", "c.jpg"))
    assert about["sizes"] == {"50x40": 1, "200x100": 1, "70x80": 1}
    assert about["classes"] == [["x", 1], ["y", 2]]
    assert about["splits"] == {"train": 2, "test": 1}


def test_a_large_jpeg_is_reported_in_its_own_size(tmp_path):
    picture(1600, 1200).save(tmp_path / "a.jpg")
    assert "1600 × 1200" in checked(tmp_path, ["a.jpg"]).text()


COPIES = {
    "quality.jpg": lambda image: (image, {"quality": 30}),
    "half.jpg": lambda image: (image.resize((200, 150)), {"quality": 80}),
    "tiny.png": lambda image: (image.resize((64, 48), Image.Resampling.BICUBIC), {}),
    "double.webp": lambda image: (image.resize((800, 600)), {"quality": 70}),
    "colours.gif": lambda image: (image, {}),
    "brighter.png": lambda image: (image.point(lambda value: min(255, value * 1.1 + 5)), {}),
}


def test_near_and_exact_duplicates(tmp_path):
    names = [f"{seed}.png" for seed in range(30)]
    for seed, name in enumerate(names):
        picture(400, 300, seed).save(tmp_path / name)
    for seed, (name, change) in enumerate(COPIES.items()):
        image, options = change(picture(400, 300, seed))
        image.save(tmp_path / name, **options)
    (tmp_path / "same.png").write_bytes((tmp_path / "20.png").read_bytes())
    report = checked(tmp_path, [*names, *COPIES, "same.png"])
    assert report.near == [[seed, 30 + seed] for seed in range(len(COPIES))]
    assert report.exact == [[20, 30 + len(COPIES)]]
    assert report.two_labels == report.two_splits == []
    assert "    20.png (x) = same.png (x)" in report.text().splitlines()
    assert checked(tmp_path, [*names, *COPIES], near=1.0).near == []


def test_one_picture_under_two_labels_or_in_two_splits(tmp_path):
    for seed in range(6):
        picture(90, 90, seed).save(tmp_path / f"{seed}.png")
        picture(90, 90, seed).save(tmp_path / f"{seed}.jpg", quality=60)
    names = [f"{seed}.{kind}" for seed in range(6) for kind in ("png", "jpg")]
    labels = [0, 1] + [0, 0] * 5
    splits = {
        "train": np.array([0, 1, 2, 4, 5, 6]),
        "test": np.array([3, 7]),
        "gallery": np.array([4, 5, 6]),
    }
    report = checked(tmp_path, names, labels, splits=splits)
    assert report.near == [[row, row + 1] for row in range(0, 12, 2)]
    assert report.two_labels == [[0, 1]]
    assert report.two_splits == [[2, 3], [6, 7]]  # not 4 and 5, of which each is in train and in gallery
    assert "    0.png (x, train) = 0.jpg (y, train)" in report.text().splitlines()
    leaked = json.loads(report.json())["one picture in two splits"][1]
    assert leaked == [
        {"path": "3.png", "label": "x", "splits": ["train", "gallery"]},
        {"path": "3.jpg", "label": "x", "splits": ["test"]},
    ]


def test_unreadable_and_flat_images_are_nobodys_near_duplicates(tmp_path):
    for name, grey in [("a.png", 250), ("b.png", 251), ("c.png", 0)]:
        Image.new("L", (64, 64), grey).save(tmp_path / name)
    for name in ("d.jpg", "e.jpg"):
        (tmp_path / name).write_bytes(b"")
    report = checked(tmp_path, ["a.png", "b.png", "c.png", "d.jpg", "e.jpg", "absent.jpg", "gone.jpg"])
    assert report.exact == report.near == []
    assert len(report.unreadable) == 4


def test_broken_files_that_are_equal_are_exact_duplicates(tmp_path):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"not an image")
    assert checked(tmp_path, ["a.jpg", "b.jpg"]).exact == [[0, 1]]


def test_workers_report_the_same(tmp_path):
    for seed in range(3):
        picture(90, 90, seed).save(tmp_path / f"{seed}.jpg")
    names = [f"{row % 3}.jpg" for row in range(150)]
    alone, pool = checked(tmp_path, names), checked(tmp_path, names, workers=2)
    assert alone.json() == pool.json()
    assert [len(rows) for rows in pool.exact] == [50, 50, 50]


def test_text_can_be_cut(tmp_path):
    report = checked(tmp_path, [f"{row}.jpg" for row in range(7)])
    lines = report.text(most=5).splitlines()
    assert lines[lines.index("unreadable: 7") + 6] == "    and 2 more"


def test_the_figure_is_the_class_histogram(tmp_path):
    report = checked(tmp_path, ["a.jpg"] * 6, [0, 0, 0, 1, 2, 2], classes="abc")
    figure = report.figure()
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in figure.axes[0].patches}
    assert bars == {0: 0, 1: 1, 2: 1, 3: 1}
    image = io.BytesIO()
    figure.savefig(image, format="png")
    assert Image.open(image).size == (600, 360)
    assert sum(bar.get_height() for bar in checked(tmp_path, ["a"] * 500).figure().axes[0].patches) == 2


def test_an_empty_catalog_has_no_faults(tmp_path):
    report = checked(tmp_path, [], classes=())
    assert report.text().splitlines()[0] == "toy: 0 images, 0 classes, 0.00 GB; no splits"
    assert json.loads(report.json())["unreadable"] == []
    report.figure()


def test_near_is_checked(tmp_path):
    with pytest.raises(ValueError, match=r"near=2: must be a correlation"):
        checked(tmp_path, [], near=2)


def test_near_pairs_are_those_of_all_pairs_compared():
    random = np.random.default_rng(0)
    originals = random.integers(0, 256, (150, 4, 4)).repeat(4, axis=1).repeat(4, axis=2)
    noise = random.normal(0, random.uniform(1, 25, (150, 1, 1)), originals.shape)
    pictures = np.clip(np.concatenate([originals, originals + noise]), 0, 255).astype(np.uint8)
    flat = pictures.reshape(len(pictures), -1).astype(float)
    correlation = np.corrcoef(flat)
    expected = np.argwhere(np.triu(correlation >= 0.98, k=1))
    assert 50 < len(expected) < 150
    assert near_pairs(pictures).tolist() == expected.tolist()


def test_a_hundred_thousand_pictures_take_seconds():
    pictures = np.random.default_rng(0).integers(0, 256, (100_000, 16, 16), dtype=np.uint8)
    pictures[-1000:] = pictures[:1000]  # a thousand copies,
    pictures[5000:15000] = pictures[5000]  # and one picture ten thousand times
    begin = time.perf_counter()
    pairs = near_pairs(pictures)
    assert time.perf_counter() - begin < 20
    found = groups(pairs, len(pictures))
    assert {(row, 99_000 + row) for row in range(1000)} <= {tuple(rows) for rows in found}
    assert max(map(len, found)) == 10_000
    assert len(found) == 1001


def test_groups_and_equal_pairs():
    assert groups(np.zeros((0, 2), np.int64), 3) == []
    assert groups(np.array([[5, 1], [2, 3], [1, 0], [3, 4]]), 7) == [[0, 1, 5], [2, 3, 4]]
    assert equal_pairs(np.array(["b", "a", "b", "", "b", ""])).tolist() == [[0, 2], [2, 4]]
