"""Each reader, on a small copy of the layout its dataset is distributed in."""

import importlib
import os
import re
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from firstpage.data import kinds, read
from firstpage.data.glyphs import draw_glyphs
from firstpage.data.readers import survey
from firstpage.data.readers.layout import rows_by_name
from firstpage.errors import UserError

CHECKOUT = Path(__file__).parents[2]
CUB = Path(os.environ.get("FIRSTPAGE_CUB", CHECKOUT.parent / "shared/data/cub200"))


def write(root, files):
    """Writes texts; a file with None is an empty image."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text or "", encoding="utf-8")
    return root


def images(root, *names):
    return write(root, dict.fromkeys(names))


def quietly(path, kind=None, **options):
    """Reads a copy whose counts differ from the published ones, as those of all small copies do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read(path, kind, **options)


def noticed(catalog):
    """Warnings other than that a small copy is small."""
    return [warning for warning in catalog.warnings if "published" not in warning]


def rows_of(catalog):
    return {name: rows.tolist() for name, rows in catalog.splits.items()}


# CUB


def cub_copy(root):
    classes = [f"{number:03d}.Bird {number}" for number in range(1, 102)]
    names = ["001.Bird 1/a wren.jpg", "101.Bird 101/zaunkönig.jpg"]
    return write(
        root,
        {
            "images.txt": f"1 {names[0]}\n2 {names[1]}\n",
            "image_class_labels.txt": "2 101\n1 1\n",
            "classes.txt": "".join(f"{number} {name}\n" for number, name in enumerate(classes, 1)),
            "bounding_boxes.txt": "1 60.0 27.0 325.0 304.0\n2 1.0 2.0 3.0 4.0\n",
            f"images/{names[0]}": None,
            f"images/{names[1]}": None,
        },
    )


@pytest.mark.parametrize("given", ["CUB_200_2011", "."])
def test_cub(tmp_path, given):
    cub_copy(tmp_path / "CUB_200_2011")
    catalog = quietly(tmp_path / given)
    assert catalog.name == "cub"
    assert catalog.path(1).is_file()
    assert catalog.labels.tolist() == [0, 100]
    assert catalog.boxes.tolist() == [[60, 27, 385, 331], [1, 2, 4, 6]]
    assert rows_of(catalog) == {"train": [0], "test": [1]}
    assert noticed(catalog) == ["cub: 99 of 101 classes have no image, the first is '002.Bird 2'"]


def test_warnings_are_given_and_kept_and_blame_the_caller(tmp_path):
    cub_copy(tmp_path)
    (tmp_path / "images/101.Bird 101/zaunkönig.jpg").unlink()
    with pytest.warns(UserWarning, match="cub: ") as given:
        catalog = read(tmp_path)
    assert [str(warning.message) for warning in given] == catalog.warnings
    assert {warning.filename for warning in given} == {__file__}
    assert (
        "1 of 2 images are missing, the first is 'images/101.Bird 101/zaunkönig.jpg'" in catalog.warnings[0]
    )
    assert "cub: train has 1 images, the published split has 5,864" in catalog.warnings
    assert len(catalog) == 2


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("images.txt", "1\n", r"images\.txt:1: expected 2 fields, got 1: '1'$"),
        ("images.txt", "\n", r"images\.txt: has no rows$"),
        ("image_class_labels.txt", "1 1\n", r"image or class '2' is in one table but not in another$"),
        ("classes.txt", "1 001.Bird\n", r"image or class '101' is in one table but not in another$"),
        ("bounding_boxes.txt", "1 1 1 1 x\n2 1 1 1 1\n", r"bounding_boxes\.txt: could not convert .* 'x'$"),
    ],
)
def test_cub_tables_that_cannot_be_read(tmp_path, file, text, message):
    write(cub_copy(tmp_path), {file: text})
    with pytest.raises(ValueError, match=message):
        read(tmp_path)


def test_cub_table_that_is_missing(tmp_path):
    (cub_copy(tmp_path) / "classes.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"classes\.txt: no such file"):
        read(tmp_path)


@pytest.mark.skipif(not CUB.exists(), reason="no CUB-200-2011 here; FIRSTPAGE_CUB may name its folder")
def test_cub_itself_has_its_published_counts(tmp_path):
    """From the folder itself, or from the tables in its archives and the names they list."""
    there = {file.relative_to(CUB).as_posix() for file in CUB.rglob("*.jpg")}
    for part in CUB.glob("*.tar"):
        with tarfile.open(part) as archive:
            for member in archive:
                there.add(member.name)
                if member.name.endswith(".txt"):
                    archive.extract(member, tmp_path, filter="data")
    catalog = quietly(tmp_path if any(tmp_path.iterdir()) else CUB)
    assert len(catalog) == len(set(catalog.paths)) == 11_788
    assert {name: rows.size for name, rows in catalog.splits.items()} == {"train": 5_864, "test": 5_924}
    assert len(catalog.split("train").classes) == len(catalog.split("test").classes) == 100
    assert np.isfinite(catalog.boxes).all()
    assert not [warning for warning in catalog.warnings if "published" in warning]
    assert {name.removeprefix("CUB_200_2011/") for name in there} >= set(catalog.paths)


# Cars


def annotations(names, classes, field, without=()):
    values = {
        "bbox_x1": [1] * len(names),
        "bbox_y1": [11] * len(names),
        "bbox_x2": [100] * len(names),
        "bbox_y2": [50] * len(names),
        "class": classes,
        field: names,
    }
    columns = {name: column for name, column in values.items() if name not in without}
    rows = np.empty((1, len(names)), [(name, object) for name in columns])
    for name, column in columns.items():
        rows[name][0] = column
    return rows


CAR_CLASSES = np.array([f"Car {number}" for number in range(1, 197)], object)


def test_cars_all_in_one(tmp_path):
    images(tmp_path, "car_ims/000001.jpg", "car_ims/000002.jpg")
    rows = annotations(["car_ims/000001.jpg", "car_ims/000002.jpg"], [98, 99], "relative_im_path")
    savemat(tmp_path / "cars_annos.mat", {"annotations": rows, "class_names": CAR_CLASSES})
    catalog = quietly(tmp_path)
    assert catalog.name == "cars"
    assert catalog.path(1).is_file()
    assert [catalog.classes[label] for label in catalog.labels] == ["Car 98", "Car 99"]
    assert catalog.boxes.tolist() == [[0, 10, 100, 50]] * 2
    assert rows_of(catalog) == {"train": [0], "test": [1]}


def devkit_copy(root, labeled):
    images(root, "cars_train/00001.jpg", "cars_test/00001.jpg")
    (root / "devkit").mkdir()
    for file, classes in (("devkit/cars_train_annos.mat", [196]), (labeled, [1])):
        savemat(root / file, {"annotations": annotations(["00001.jpg"], classes, "fname")})
    savemat(root / "devkit/cars_meta.mat", {"class_names": CAR_CLASSES})
    return root


@pytest.mark.parametrize("folder", ["", "devkit/"])
def test_cars_devkit(tmp_path, folder):
    catalog = quietly(devkit_copy(tmp_path, f"{folder}cars_test_annos_withlabels.mat"))
    assert catalog.paths == ["cars_train/00001.jpg", "cars_test/00001.jpg"]
    assert catalog.labels.tolist() == [195, 0]
    assert rows_of(catalog) == {"train": [1], "test": [0]}
    assert catalog.path(0).is_file()


def test_cars_annotations_that_cannot_be_read(tmp_path):
    labeled = tmp_path / "cars_test_annos_withlabels.mat"
    devkit_copy(tmp_path, labeled.name)
    savemat(labeled, {"annotations": annotations(["00001.jpg"], [1], "fname", without=["class"])})
    with pytest.raises(ValueError, match=r"withlabels\.mat: annotations have no field 'class', only bbox_x1"):
        read(tmp_path)
    labeled.write_bytes(b"not MATLAB")
    with pytest.raises(ValueError, match=r"withlabels\.mat: cannot read 'annotations'"):
        read(tmp_path)
    labeled.unlink()
    with pytest.raises(FileNotFoundError, match=r"withlabels\.mat: no such file"):
        read(tmp_path)


def test_equal_columns_of_a_parquet_file_are_named(tmp_path):
    arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    table = arrow.Table.from_arrays([arrow.array(["a"])] * 3, names=["path", "label", "label"])
    parquet.write_table(table, tmp_path / "birds.parquet")
    with pytest.raises(UserError, match="'label'"):
        read(tmp_path / "birds.parquet")


def test_cars_of_a_mirror_that_lacks_images(tmp_path, monkeypatch):
    monkeypatch.setitem(survey.PUBLISHED, "cars", {"train": 805, "test": 813})  # all 16,185 take long
    names = [f"car_ims/{number:06d}.jpg" for number in range(1, 1_619)]
    classes = [1 + row % 98 if row < 805 else 99 + row % 98 for row in range(1_618)]
    rows = annotations(names, classes, "relative_im_path")
    savemat(tmp_path / "cars_annos.mat", {"annotations": rows, "class_names": CAR_CLASSES})
    images(tmp_path, *names[:100])
    with pytest.warns(UserWarning, match="1,518 of 1,618 images are missing, the first is 'car_ims/000101"):
        catalog = read(tmp_path)
    assert len(catalog.warnings) == 1
    assert {name: rows.size for name, rows in catalog.splits.items()} == {"train": 805, "test": 813}


@pytest.mark.parametrize("layout", ["{}", "train/{}", "test/{}"])
def test_cars_class_folders(tmp_path, layout):
    classes = ["AM General Hummer SUV 2000", *(f"Car {number:03d}" for number in range(2, 197))]
    images(tmp_path, *(f"{layout.format(name)}/1.jpg" for name in classes))
    catalog = quietly(tmp_path)
    assert "cars: train has 98 images, the published split has 8,054" in catalog.warnings
    assert (catalog.name, catalog.classes) == ("cars", classes)
    assert rows_of(catalog) == {"train": list(range(98)), "test": list(range(98, 196))}
    assert noticed(catalog) == []


def test_cars_in_both_class_folders_share_labels(tmp_path):
    name = "AM General Hummer SUV 2000"
    images(tmp_path, f"train/{name}/1.jpg", f"test/{name}/2.jpg", "test/Zeta/1.jpg")
    catalog = quietly(tmp_path)
    assert catalog.labels.tolist() == [0, 0, 1]
    assert rows_of(catalog) == {"train": [0, 1, 2], "test": []}


# Online Products

HEADER = "image_id class_id super_class_id path\n"


def test_sop(tmp_path):
    write(
        tmp_path / "Stanford_Online_Products",
        {
            "Ebay_train.txt": HEADER + "1 2 1 bicycle_final/1_0.JPG\n2 10 12 toaster_final/2 0.JPG\n",
            "Ebay_test.txt": HEADER + "3 11318 1 bicycle_final/3_0.JPG\n",
            "bicycle_final/1_0.JPG": None,
            "bicycle_final/3_0.JPG": None,
            "toaster_final/2 0.JPG": None,
        },
    )
    catalog = quietly(tmp_path)
    assert catalog.name == "sop"
    assert catalog.classes == ["2", "10", "11318"]
    assert catalog.labels.tolist() == [0, 1, 2]
    assert catalog.groups.tolist() == [0, 1, 0]
    assert catalog.group_names == ["bicycle", "toaster"]
    assert rows_of(catalog) == {"train": [0, 1], "test": [2]}
    assert noticed(catalog) == []


def test_sop_bad_row_is_named(tmp_path):
    write(tmp_path, {"Ebay_train.txt": HEADER + "1 1 1 a/1.JPG\n2 1\n", "Ebay_test.txt": HEADER})
    with pytest.raises(ValueError, match=r"Ebay_train\.txt:3: expected 4 fields, got 2: '2 1'$"):
        read(tmp_path)


def test_sop_of_published_size_is_not_warned_of(tmp_path):
    rows = [f"{row} {row // 5} 1 bicycle_final/{row}.JPG\n" for row in range(59_551 + 60_502)]
    tables = {"Ebay_train.txt": rows[:59_551], "Ebay_test.txt": rows[59_551:]}
    write(tmp_path, {name: HEADER + "".join(lines) for name, lines in tables.items()})
    with pytest.warns(UserWarning, match="sop: 120,053 of 120,053 images are missing"):
        catalog = read(tmp_path)
    assert len(catalog.warnings) == 1


# In-Shop


@pytest.mark.parametrize("folder", ["Img/img", "img", "Img"])
@pytest.mark.parametrize("table", ["Eval/list_eval_partition.txt", "list_eval_partition.txt"])
def test_inshop(tmp_path, folder, table):
    names = [f"WOMEN/Blouses & Shirts/id_0000000{number}/02_1_front.jpg" for number in (1, 2, 2)]
    statuses = ["train", "query", "gallery"]
    lines = [
        f"img/{name}   {name.split('/')[2]}   {status}\n"
        for name, status in zip(names, statuses, strict=True)
    ]
    write(tmp_path, {table: "3\nimage_name item_id evaluation_status\n" + "".join(lines)})
    images(tmp_path, *(f"{folder}/{name}" for name in names))
    catalog = quietly(tmp_path)
    assert catalog.name == "inshop"
    assert catalog.classes == ["id_00000001", "id_00000002"]
    assert rows_of(catalog) == {"train": [0], "query": [1], "gallery": [2]}
    assert noticed(catalog) == []
    assert len(catalog.warnings) == 3


def test_inshop_of_published_size_is_not_warned_of(tmp_path):
    counts = {"train": 25_882, "query": 14_218, "gallery": 12_612}
    lines = [
        f"img/{status}/{row}.jpg id_{row // 7} {status}\n" for status, n in counts.items() for row in range(n)
    ]
    header = "52712\nimage_name item_id evaluation_status\n"
    write(tmp_path, {"Eval/list_eval_partition.txt": header + "".join(lines)})
    with pytest.warns(UserWarning, match="inshop: 52,712 of 52,712 images are missing"):
        catalog = read(tmp_path)
    assert len(catalog.warnings) == 1


def test_inshop_unknown_status_is_named(tmp_path):
    write(
        tmp_path,
        {"Eval/list_eval_partition.txt": "1\nimage_name item_id evaluation_status\nimg/1.jpg id_1 val\n"},
    )
    with pytest.raises(
        ValueError, match=r"'img/1\.jpg' has evaluation_status 'val'; expected train, query or gallery"
    ):
        read(tmp_path)


# Hotels-50K

SET = "image_id,hotel_id,image_url,image_source,upload_timestamp\n"


@pytest.mark.parametrize("tables", ["", "dataset/", "input/dataset/"])
@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("images/train/3/12/travel_website/7.jpg", "images/test/unoccluded/3/12/traffickcam/9.jpg"),
        ("images/train/7.JPEG", "images/test/unoccluded/3/12/9.jpg"),
    ],
)
def test_hotels50k(tmp_path, tables, train, test):
    write(
        tmp_path,
        {
            f"{tables}train_set.csv": SET
            + "7,12,http://x/7.JPEG,travel_website,t\n8,40,http://x/8.jpg,traffickcam,t\n",
            f"{tables}test_set.csv": SET + "9,12,http://x/9.jpg,traffickcam,t\n",
            f"{tables}hotel_info.csv": 'hotel_id,hotel_name,chain_id\n12,"Sea, View",3\n40,Inn,1\n',
            f"{tables}chain_info.csv": "chain_id,chain_name\n1,Inns\n3,Views\n",
            train: None,
            test: None,
        },
    )
    with pytest.warns(
        UserWarning, match="1 of 3 images are missing, the first is 'images/train/1/40/traffickcam/8.jpg'"
    ):
        catalog = read(tmp_path)
    assert catalog.name == "hotels50k"
    assert catalog.paths == [train, "images/train/1/40/traffickcam/8.jpg", test]
    assert catalog.classes == ["12", "40"]
    assert rows_of(catalog) == {"train": [0, 1], "gallery": [0, 1], "query": [2]}
    assert [catalog.group_names[group] for group in catalog.groups] == ["Views", "Inns", "Views"]


def test_hotels50k_without_chains_and_with_a_bad_row(tmp_path):
    write(tmp_path, {"train_set.csv": SET + "7,12,u,s,t\n", "test_set.csv": SET + "9,12,u,s,t\n"})
    assert quietly(tmp_path).groups is None
    write(tmp_path, {"test_set.csv": SET + "9,12\n"})
    with pytest.raises(
        ValueError, match=r"test_set\.csv:2: expected image_id, hotel_id, image_url, image_source"
    ):
        read(tmp_path)


# Faces


@pytest.mark.parametrize("train", ["train", "TRAIN"])
def test_numbers_of_casia_in_splits_are_class_folders(tmp_path, train):
    images(tmp_path, *(f"{train}/{name}/1.jpg" for name in ("0000045", "0000046")))
    images(tmp_path, *(f"test/{name}/1.jpg" for name in ("0000098", "0000099")))
    catalog = read(tmp_path)
    assert (catalog.name, rows_of(catalog)) == ("folder", {"train": [0, 1], "test": [2, 3]})
    assert read(tmp_path / train).name == "casia"
    with pytest.raises(ValueError, match=r"not identities; give one of these, or kind='folder'$"):
        read(tmp_path, "casia")


@pytest.mark.parametrize("given", ["CASIA-WebFace", "."])
def test_casia(tmp_path, given):
    images(tmp_path / "CASIA-WebFace", "0000045/001.jpg", "0000045/002.jpg", "0000099/001.jpg")
    catalog = read(tmp_path / given)
    assert catalog.name == "casia"
    assert catalog.classes == ["0000045", "0000099"]
    assert rows_of(catalog) == {"train": [0, 1, 2]}


def lfw_copy(root, folder):
    names = ["Ann_Lee/Ann_Lee_0001.jpg", "Ann_Lee/Ann_Lee_0002.jpg", "José_Ruiz/José_Ruiz_0010.jpg"]
    images(root, *(f"{folder}{name}" for name in names))
    fold = "Ann_Lee\t1\t2\nAnn_Lee\t2\tJosé_Ruiz\t10\n"
    return write(root, {"pairs.txt": "2\t1\n" + fold * 2})


@pytest.mark.parametrize("folder", ["", "lfw/", "lfw-deepfunneled/"])
def test_lfw(tmp_path, folder):
    catalog = read(lfw_copy(tmp_path, folder))
    pairs = catalog.pairs
    assert catalog.name == "lfw"
    assert rows_of(catalog) == {"test": [0, 1, 2]}
    assert pairs.folds.tolist() == [0, 0, 1, 1]
    assert pairs.left.tolist() == [0, 1, 0, 1]
    assert pairs.right.tolist() == [1, 2, 1, 2]
    assert pairs.same.tolist() == [True, False, True, False]
    assert catalog.warnings == []


def test_lfw_has_ten_folds_of_600_pairs(tmp_path):
    images(tmp_path, "A/A_0001.jpg", "A/A_0002.jpg", "B/B_0001.jpg")
    write(tmp_path, {"pairs.txt": "10\t300\n" + ("A\t1\t2\n" * 300 + "A\t1\tB\t1\n" * 300) * 10})
    pairs = read(tmp_path).pairs
    assert np.bincount(pairs.folds).tolist() == [600] * 10
    assert np.bincount(pairs.folds[pairs.same]).tolist() == [300] * 10


def test_lfw_missing_image_loses_its_pairs(tmp_path):
    lfw_copy(tmp_path, "lfw/")
    (tmp_path / "lfw/José_Ruiz/José_Ruiz_0010.jpg").unlink()
    catalog = quietly(tmp_path)
    assert "lfw: 2 of 4 pairs name an image that does not exist" in catalog.warnings
    assert catalog.pairs.same.tolist() == [True, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"pairs\.txt:1: expected the number of folds"),
        ("10 0\n", r"announces 10 folds of 0 \+ 0 pairs, but has 0 pairs$"),
        ("1 1\nAnn_Lee 1 2\n", r"announces 1 folds of 1 \+ 1 pairs, but has 1 pairs$"),
        ("1 1\nAnn_Lee 1 2\nAnn_Lee one two\n", r"pairs\.txt:3: expected 'name n1 n2'"),
        ("1 1\nAnn_Lee 1 2\nAnn_Lee\n", r"pairs\.txt:3: expected 'name n1 n2'"),
        ("1 1\nNo_One 1 2\nNo_One 1 3\n", r"names 'No_One', but neither"),
    ],
)
def test_lfw_pairs_that_cannot_be_read(tmp_path, text, message):
    write(lfw_copy(tmp_path, ""), {"pairs.txt": text})
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read(tmp_path)


# Folders


def test_folder_of_classes(tmp_path):
    names = ["auk/1.JPG", "auk/2.png", "zaunkönig 鳥/a b.webp", "zaunkönig 鳥/new\nline.jpg"]
    images(tmp_path, *names, "auk/notes.txt", "auk/.hidden.jpg", ".cache/1.jpg")
    catalog = read(tmp_path)
    assert (catalog.name, catalog.paths, catalog.classes) == ("folder", names, ["auk", "zaunkönig 鳥"])
    assert (catalog.splits, catalog.groups, catalog.notes) == ({}, None, [])
    assert catalog.labels.dtype == np.int64


GROCERIES = ("Fruit/Apple/Golden-Delicious", "Fruit/Apple/Pink-Lady", "Fruit/Lemon", "Packages/Milk/Whole")


@pytest.mark.parametrize("splits", [("train", "validation"), ("Training", "val"), ("train", "TEST"), ("",)])
def test_nested_class_folders_are_classes_by_their_innermost_folder(tmp_path, splits):
    images(tmp_path, *(f"{split}/{name}/1.jpg".lstrip("/") for split in splits for name in GROCERIES))
    catalog = read(tmp_path)
    assert catalog.classes == list(GROCERIES)
    assert catalog.group_names == ["Fruit", "Packages"]
    assert catalog.groups.tolist() == [0, 0, 0, 1] * len(splits)
    assert catalog.labels.tolist() == [0, 1, 2, 3] * len(splits)
    expected = {"validation": "val", "training": "train"}
    assert list(catalog.splits) == [expected.get(name.lower(), name.lower()) for name in splits if name]
    assert catalog.notes == [
        "4 classes in 2 groups; classes are the folders that hold images, such as 'Packages/Milk/Whole' "
        "(not all are equally deep): --classes top to change"
    ]


def test_characters_in_alphabets(tmp_path):
    names = [f"{name}/character{number:02}/1.png" for name in ("Greek", "Latin") for number in (1, 2, 3)]
    catalog = read(images(tmp_path, *names))
    assert (len(catalog.classes), catalog.group_names) == (6, ["Greek", "Latin"])
    assert catalog.notes == [
        "6 classes in 2 groups; classes are the innermost folders, such as 'Latin/character03': "
        "--classes top|depth=N|PATTERN to change"
    ]


@pytest.mark.parametrize(
    ("rule", "classes", "groups"),
    [
        ("leaf", ["mug", "mug/views", "pot/views"], ["mug", "pot"]),
        ("top", ["mug", "pot"], []),
        ("depth=1", ["mug", "pot"], ["mug", "pot"]),
        ("depth=2", ["mug", "mug/views", "pot/views"], ["mug", "pot"]),
        (r"(\d)_", ["1", "2"], ["mug", "pot"]),
    ],
)
def test_what_makes_a_class_can_be_said(tmp_path, rule, classes, groups):
    images(tmp_path, "mug/1_a.jpg", "mug/views/2_b.jpg", "pot/views/1_c.jpg")
    catalog = read(tmp_path, classes=rule)
    assert (catalog.classes, catalog.group_names, catalog.class_rule) == (classes, groups, rule)
    assert len(catalog.notes) == 1
    assert catalog.notes[0].startswith(f"{len(classes)} classes")


def test_classes_by_file_name(tmp_path):
    images(tmp_path, "17_1.jpg", "17_2.jpg", "9_1.jpg", "cover.jpg")
    with pytest.raises(
        FileNotFoundError, match=r"4 images are outside class folders; .* --classes '\(\\w\+\)_'"
    ):
        read(tmp_path)
    catalog = quietly(tmp_path, classes=r"(\d+)_")
    assert (catalog.classes, catalog.labels.tolist(), catalog.groups) == (["17", "9"], [0, 0, 1], None)
    assert catalog.warnings == [r"folder: 1 images do not fit '(\\d+)_', such as 'cover.jpg'"]


@pytest.mark.parametrize("rule", ["depth=0", "depth=x", "leaves", "(", "(a)(b)"])
def test_rules_that_are_none(tmp_path, rule):
    with pytest.raises(UserError, match=r"^classes='"):
        read(images(tmp_path, "a/1.jpg"), classes=rule)


def test_only_folders_take_a_rule(tmp_path):
    table = write(tmp_path, {"a.csv": "path,label\n1.jpg,auk\n"}) / "a.csv"
    for data in (table, "glyphs"):
        with pytest.raises(UserError, match="has classes of its own"):
            read(data, classes="top")


def test_an_empty_folder_at_any_depth_is_a_class_without_images(tmp_path):
    images(tmp_path, "Fruit/Apple/1.jpg", "Fruit/Kiwi/notes.txt", "Dairy/Milk/1.heic")
    (tmp_path / "Herbs").mkdir()
    catalog = quietly(tmp_path)
    assert catalog.classes == ["Dairy/Milk", "Fruit/Apple", "Fruit/Kiwi", "Herbs"]
    assert catalog.notes[0].startswith("1 class in 1 group;")
    assert "folder: 3 of 4 classes have no image, the first is 'Dairy/Milk'" in catalog.warnings


@pytest.mark.parametrize(
    ("names", "notes"),
    [
        (
            ["train/1.jpg", "bus/1.jpg"],
            ["'train' is no split: two or more folders with such names are splits"],
        ),
        (
            ["auk/train/1.jpg", "auk/test/2.jpg"],
            ["'auk/test' is no split: splits are the out", "'auk/train'"],
        ),
        (
            ["all/train/auk/1.jpg", "all/test/auk/2.jpg"],
            ["'all/test' is no split: splits are", "'all/train'"],
        ),
        (
            ["train_set/a/1.jpg", "TestImages/a/1.jpg"],
            ["'TestImages' is no split: splits are named", "'train_"],
        ),
        (["train station/1.jpg", "contest/1.jpg"], []),
        (
            ["train/query/1.jpg", "test/auk/1.jpg"],
            ["'train/query' is no split: splits are the outermost folders"],
        ),
    ],
)
def test_folders_that_look_like_splits_and_are_none_are_told(tmp_path, names, notes):
    told = [note for note in read(images(tmp_path, *names)).notes if "is no split" in note]
    assert [note[: len(start)] for note, start in zip(told, notes, strict=True)] == notes


@pytest.mark.parametrize("splits", [("train", "test"), ("train", "query", "gallery"), ("train",)])
def test_folder_of_splits(tmp_path, splits):
    images(tmp_path, *(f"{split}/wren/1.jpg" for split in splits), "train/auk/1.jpg")
    catalog = read(tmp_path)
    assert catalog.classes == ["auk", "wren"]
    assert list(catalog.splits) == list(splits)
    for split in splits:
        assert all(catalog.paths[row].startswith(f"{split}/") for row in catalog.splits[split])


def test_split_folders_in_any_case(tmp_path):
    images(tmp_path, "Train/wren/1.jpg", "TEST/auk/1.jpg", "Val/auk/2.jpg")
    catalog = read(tmp_path)
    assert catalog.classes == ["auk", "wren"]
    assert catalog.paths == ["Train/wren/1.jpg", "Val/auk/2.jpg", "TEST/auk/1.jpg"]
    assert rows_of(catalog) == {"train": [0], "val": [1], "test": [2]}


def test_a_class_may_be_called_train(tmp_path):
    assert read(images(tmp_path, "train/1.jpg", "bus/1.jpg")).classes == ["bus", "train"]


def test_folder_reports_what_it_does_not_read(tmp_path):
    images(tmp_path, "train/auk/1.jpg", "test/wren/1.jpg", "test/loose.jpg", "masks/1.png")
    (tmp_path / "train/empty").mkdir()
    assert quietly(tmp_path).warnings == [
        f"folder: 1 images in '{tmp_path / 'test'}' are in no class folder, the first is 'loose.jpg'",
        "folder: folders beside train, test are ignored: masks",
        "folder: 1 of 3 classes have no image, the first is 'empty'",
    ]


def test_kinds_that_are_not_read_are_told(tmp_path):
    images(
        tmp_path, "auk/1.jpg", "auk/2.avif", "loose.svg", "wren/1.HEIC", "wren/nest/2.heic", "wren/.3.heic"
    )
    images(tmp_path, "auk/roll.raw/1.jpg")  # a folder
    catalog = quietly(tmp_path)
    assert catalog.paths == ["auk/1.jpg", "auk/2.avif", "auk/roll.raw/1.jpg"]
    assert catalog.unread == {".heic": 2, ".svg": 1}
    assert catalog.warnings == [
        "folder: 2 .heic files are not read: pip install 'firstpage[heif]', or convert them to JPEG",
        "folder: 1 .svg files are not supported; convert them to JPEG or PNG",
        "folder: 2 of 4 classes have no image, the first is 'wren'",
    ]


def test_folder_of_kinds_that_are_not_read(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"no images; 2 \.heic files are not read: pip install 'firstp"
    ):
        read(images(tmp_path, "auk/1.heic", "2.heic"))


def test_images_outside_class_folders_are_read_only_when_asked_for(tmp_path):
    (images(tmp_path, "flat/2.jpg", "flat/1.jpg", "flat/notes.txt", "flat/.3.jpg") / "flat/empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"2 images are outside class folders; move them to flat/<cl"):
        read(tmp_path / "flat")
    catalog = read(tmp_path / "flat", unlabeled=True)
    assert (catalog.paths, catalog.classes, catalog.splits) == (["1.jpg", "2.jpg"], ["flat"], {})
    assert catalog.labels.tolist() == [0, 0]
    images(tmp_path, "flat/auk/1.jpg")
    for unlabeled in (False, True):
        assert quietly(tmp_path / "flat", unlabeled=unlabeled).classes == ["auk", "empty"]


def test_a_flat_split_is_read_when_asked_for(tmp_path):
    images(tmp_path, "train/1.jpg")
    assert read(tmp_path, unlabeled=True).paths == ["train/1.jpg"]


def test_broken_entries_are_listed_for_the_decoder_to_report(tmp_path):
    images(tmp_path, "auk/1.jpg")
    (tmp_path / "auk/folder.jpg").mkdir()
    (tmp_path / "auk/loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "auk/gone.jpg").symlink_to("nowhere")
    (tmp_path / "auk/parent").symlink_to(tmp_path)
    (tmp_path / "itself").symlink_to("itself")
    catalog = read(tmp_path)
    assert catalog.paths == ["auk/1.jpg", "auk/folder.jpg", "auk/gone.jpg", "auk/loop.jpg"]
    assert catalog.classes == ["auk"]


def test_names_that_are_not_utf_8(tmp_path):
    (tmp_path / "auk").mkdir()
    (tmp_path / "auk" / os.fsdecode(b"\xff.jpg")).touch()
    (tmp_path / "birds.csv").write_bytes(b"path,label\nauk/\xff.jpg,auk\n")
    assert read(tmp_path).paths == read(tmp_path / "birds.csv").paths
    assert read(tmp_path).path(0).exists()


# Tables


def table(tmp_path, text, name="birds.csv"):
    return write(tmp_path, {name: text, "a wren.jpg": None, "auk.jpg": None}) / name


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_csv_with_every_column(tmp_path, delimiter, start):
    header = "Path, label,split,x0,y0,x1,y1,group,extra\n"
    text = header + "a wren.jpg,wren,train,1,2,3.5,4,wood,\nauk.jpg,auk,,,,,,sea,\n"
    catalog = read(table(tmp_path, start + text.replace(",", delimiter)))
    assert catalog.name == "csv"
    assert catalog.root == tmp_path
    assert catalog.paths == ["a wren.jpg", "auk.jpg"]
    assert [catalog.classes[label] for label in catalog.labels] == ["wren", "auk"]
    assert rows_of(catalog) == {"train": [0]}
    np.testing.assert_array_equal(catalog.boxes, np.array([[1, 2, 3.5, 4], [np.nan] * 4], np.float32))
    assert [catalog.group_names[group] for group in catalog.groups] == ["wood", "sea"]


@pytest.mark.parametrize("box", ["1 2 3 4", '"1,2,3,4"', '"[1, 2, 3, 4]"', '"(1.0, 2.0, 3.0, 4.0)"'])
def test_csv_box_in_one_column(tmp_path, box):
    catalog = read(table(tmp_path, f"path,label,box\nauk.jpg,auk,{box}\n"))
    assert catalog.boxes.tolist() == [[1, 2, 3, 4]]


def test_csv_box_of_nan_is_none(tmp_path):
    catalog = read(table(tmp_path, "path,label,x0,y0,x1,y1\nauk.jpg,auk,nan,nan,nan,nan\n"))
    assert np.isnan(catalog.boxes).all()


def test_csv_of_two_columns_has_nothing_else(tmp_path):
    catalog = read(table(tmp_path, "path,label\nauk.jpg,7\n\na wren.jpg,10\n"))
    assert catalog.classes == ["7", "10"]
    assert (catalog.splits, catalog.boxes, catalog.groups, catalog.group_names) == ({}, None, None, [])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_further_columns_are_kept(tmp_path, kind):
    header = {
        "path": ["1.jpg", "2.jpg"],
        "label": ["auk", "wren"],
        " Camera": ["c1", None],
        "year": [1999, 2001],
    }
    images(tmp_path, "1.jpg", "2.jpg")
    file = tmp_path / f"birds.{kind}"
    if kind == "csv":
        rows = zip(*header.values(), strict=True)
        lines = [",".join("" if cell is None else str(cell) for cell in row) for row in [header, *rows]]
        file.write_text("\n".join(lines))
    else:
        arrow = pytest.importorskip("pyarrow")
        blobs = {"pixels": [b"\xff", b"\xfe"], "vector": [[0.5], [1.5]]}  # not to be kept
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table(header | blobs), file)
    catalog = read(file)
    assert catalog.columns == {"camera": ["c1", ""], "year": ["1999", "2001"]}
    assert catalog.notes == ["further columns: camera, year"]
    assert catalog.take([1]).columns == {"camera": [""], "year": ["2001"]}
    assert catalog.column_codes("camera").tolist() == [0, -1]
    with pytest.raises(
        UserError, match=r"'color'.* has no such column; its further columns are camera, year"
    ):
        catalog.column_codes("color")


def test_few_of_many_further_columns_are_kept(tmp_path):
    names = [f"c{number}" for number in range(1000)]
    images(tmp_path, "1.jpg")
    cells = ",".join("x" for _ in names)
    catalog = read(write(tmp_path, {"a.csv": f"path,label,{','.join(names)}\n1.jpg,auk,{cells}\n"}) / "a.csv")
    assert len(catalog.columns) == 64
    assert catalog.notes == [
        "further columns: c0, c1, c2, c3, c4, c5, c6, c7 and 992 more; only the first 64 are kept"
    ]


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (
            "filename,label",
            "no column 'path'; its columns are filename, label; did you mean 'filename'? a table",
        ),
        (
            "path,Class",
            "no column 'label'; its columns are path, class; did you mean 'class'? a table has col",
        ),
        (
            "path,lable",
            "did you mean 'lable'? a table has columns such as path,label,split,group,x0,y0",
        ),
        ("path,zzz", "its columns are path, zzz; a table has columns such as path,label,split,group"),
    ],
)
def test_a_missing_column_is_told_with_the_one_that_may_be_it(tmp_path, header, told):
    with pytest.raises(UserError, match=re.escape(told)):
        read(write(tmp_path, {"a.csv": f"{header}\n1.jpg,auk\n"}) / "a.csv")


@pytest.mark.parametrize(("name", "meant"), [("subset", "split"), ("Splits ", "split"), ("bbox", "box")])
def test_a_further_column_that_may_be_a_known_one_is_told(tmp_path, name, meant):
    images(tmp_path, "1.jpg")
    catalog = read(write(tmp_path, {"a.csv": f"path,label,{name}\n1.jpg,auk,test\n"}) / "a.csv")
    name = name.strip().lower()
    assert catalog.notes == [
        f"further columns: {name}",
        f"column {name!r} has no meaning of its own: did you mean {meant!r}?",
    ]


def test_csv_splits_in_any_case(tmp_path):
    catalog = read(table(tmp_path, "path,label,split\nauk.jpg,auk,TRAIN\na wren.jpg,wren,Half\n"))
    assert rows_of(catalog) == {"train": [0], "Half": [1]}


def test_csv_blanks_around_names_do_not_count(tmp_path):
    text = "path,label,split,group\n1.jpg,wren ,train,a\n2.jpg,wren,train ,a \n3.jpg,wren,  ,a\n"
    catalog = quietly(write(tmp_path, {"a.csv": text}) / "a.csv")
    assert (catalog.classes, catalog.group_names) == (["wren"], ["a"])
    assert rows_of(catalog) == {"train": [0, 1]}


def test_what_is_listed_is_what_the_decoder_knows(tmp_path):
    catalog = quietly(images(tmp_path, "auk/1.pbm", "auk/2.pnm", "auk/3.jp2", "auk/4.tga"))
    assert catalog.paths == ["auk/1.pbm", "auk/2.pnm", "auk/3.jp2"]
    assert catalog.unread == {".tga": 1}


def test_csv_root_and_absolute_paths(tmp_path):
    file = table(tmp_path, f"path,label\nauk.jpg,auk\n{tmp_path / 'a wren.jpg'},wren\n", "tables/birds.csv")
    images(tmp_path, "auk.jpg", "a wren.jpg")
    catalog = read(file, root=tmp_path)
    assert [catalog.path(row).is_file() for row in range(2)] == [True, True]
    assert catalog.warnings == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"birds\.csv: no column 'path'; its columns are none; a table"),
        ("file,label\na,b\n", r"no column 'path'; its columns are file, label; did you mean 'file'"),
        ("path,class\na,b\n", r"no column 'label'; its columns are path, class; did you mean"),
        (
            "path,label,x0,y0,x1\na,b,1,2,3\n",
            r"no column 'y1'; its columns are path, label, x0, y0, x1; a table",
        ),
        ("path,label\n", r"has no rows after its header$"),
        ("path,label\na,b\nc\n", r"birds\.csv: row 3: expected 2 cells, got 1$"),
        ("path,label\na,b\nc,d,e\n", r"row 3: expected 2 cells, got 3$"),
        ("path,label\n,b\n", r"row 2: empty path: fill it in, or remove the row$"),
        ("path,label\na,\n", r"row 2: empty label: fill it in, or remove the row$"),
        ("path,label\na, \t\n", r"row 2: empty label: fill it in, or remove the row$"),
        ("path,label,group\na,b,\n", r"row 2: empty group: fill it in, or remove the row$"),
        ("path,label\na,b\nc,nan\n", r"row 3: empty label: fill it in, or remove the row$"),
        ("path,label\na,NaN\n", r"row 2: empty label: fill it in"),
        ("path,label\n<NA>,a\n", r"row 2: empty path: fill it in"),
        ("path,label,label\na,b,c\n", r"2 columns are named 'label': rename or remove all but one$"),
        ("path,Label, label \na,b,c\n", r"2 columns are named 'label': rename"),
        ("path,label,x0,y0,x1,y1,x0\na,b,1,2,3,4,5\n", r"2 columns are named 'x0': rename"),
        ("path,label,box\na,b,1 2 3\n", r"row 2: expected a box of four numbers x0 y0 x1 y1, got '1 2 3'$"),
        ("path,label,box\na,b,1 2 3 x\n", r"row 2: expected a box of four numbers"),
        ("path,label,x0,y0,x1,y1\na,b,1,2,3,\n", r"row 2: expected a box of four numbers"),
        ("path,label,box\na,b,3 2 1 4\n", r"row 2: expected a box with x0 < x1 and y0 < y1, got '3 2 1 4'$"),
    ],
)
def test_csv_that_cannot_be_read(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read(table(tmp_path, text))


def test_csv_cell_without_end(tmp_path):
    with pytest.raises(ValueError, match=r"birds\.csv:2: field larger than field limit"):
        read(table(tmp_path, 'path,label\n"' + "a" * 200_000))


def write_parquet(file, columns):
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.table(columns), file)
    return file


def test_parquet_equals_csv(tmp_path):
    columns = {
        "path": ["a wren.jpg", "auk.jpg"],
        "label": [10, 0],
        "split": ["train", None],
        "box": [[1.0, 2.0, 3.0, 4.0], None],
        "group": ["wood", "sea"],
        "extra": [1, 2],
    }
    file = table(tmp_path, "path,label,split,box,group\na wren.jpg,10,train,1 2 3 4,wood\nauk.jpg,0,,,sea\n")
    expected, catalog = read(file), read(write_parquet(tmp_path / "birds.parquet", columns))
    assert catalog.name == "parquet"
    assert (catalog.paths, catalog.classes, catalog.group_names) == (
        expected.paths,
        ["0", "10"],
        ["sea", "wood"],
    )
    assert catalog.labels.tolist() == expected.labels.tolist() == [1, 0]
    assert catalog.groups.tolist() == expected.groups.tolist() == [1, 0]
    assert rows_of(catalog) == rows_of(expected) == {"train": [0]}
    np.testing.assert_array_equal(catalog.boxes, expected.boxes)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"path": ["a"]}, r"birds\.parquet: no column 'label'; its columns are path; a table"),
        (
            {"path": ["a", None], "label": [0, 1]},
            r"birds\.parquet: row 2: empty path: fill it in, or remove the row$",
        ),
        (
            {"path": ["a", "b"], "label": [1.0, float("nan")]},
            r"birds\.parquet: row 2: empty label: fill it in",
        ),
        ({"path": ["a"], "Path": ["a"], "label": [0]}, r"2 columns are named 'path': rename"),
        ({"path": ["a"], "label": [0], "box": [[1.0, 2.0]]}, r"row 1: expected a box of four numbers"),
        ({"path": ["a"], "label": [0], "box": [7]}, r"row 1: expected a box of four numbers .*, got 7$"),
    ],
)
def test_parquet_that_cannot_be_read(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        read(write_parquet(tmp_path / "birds.parquet", columns))


def test_parquet_that_is_not_one(tmp_path, monkeypatch):
    file = write(tmp_path, {"birds.parquet": "path,label"}) / "birds.parquet"
    with pytest.raises(ValueError, match=r"birds\.parquet: not a parquet file, or a damaged one \([^\n]+\)$"):
        read(file)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"needs pyarrow: pip install firstpage\[parquet\]"):
        read(file)


def test_splits_may_be_missing(tmp_path):
    columns = {"path": ["a", "b"], "label": [0, 1], "split": [float("nan"), None]}
    assert quietly(write_parquet(tmp_path / "birds.parquet", columns)).splits == {}
    assert quietly(table(tmp_path, "path,label,split\na,b,nan\nc,d,train\n")).splits.keys() == {"train"}


def test_columns_that_are_not_read_may_have_one_name(tmp_path):
    assert quietly(table(tmp_path, "path,label,,\na,b,c,d\n")).classes == ["b"]


def test_messages_are_short_whatever_they_quote(tmp_path):
    names = ",".join(f"column{number}" for number in range(90_000))
    for text in (f"{names}\n", f"path,label,box\na,b,{'x' * 100_000}\n", f"{names},{names}\n"):
        with pytest.raises(ValueError, match=r"birds\.csv:") as error:
            read(table(tmp_path, text))
        assert len(str(error.value)) <= 2000


def test_messages_hold_no_control_characters(tmp_path):
    with pytest.raises(ValueError, match=r"its columns are \\u001b\[31mred, label") as error:
        read(table(tmp_path, "\x1b[31mred,label\na,b\n"))
    assert str(error.value).isprintable()


NOT_IMAGES = [
    "x.csv",
    "x.parquet",
    "lfw/pairs.txt",
    "glyphs/glyphs.json",
    "cub/image_class_labels.txt",
    "cars/cars_annos.mat",
    "sop/Ebay_train.txt",
    "inshop/list_eval_partition.txt",
    "hotels/train_set.csv",
]


@pytest.mark.parametrize("name", NOT_IMAGES)
@pytest.mark.parametrize("kind", ["fifo", "zeros", "folder", "sparse"])
def test_what_never_ends_is_not_read(tmp_path, name, kind):
    """Each would take forever, or all memory."""
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    for other in ("images.txt", "classes.txt", "bounding_boxes.txt", "Ebay_test.txt", "test_set.csv"):
        file.with_name(other).write_text("1 1 1 1 1\n")
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "zeros":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    else:
        with file.open("wb") as opened:
            opened.truncate(2**40)
    with pytest.raises((ValueError, OSError), match=r"^[^\n]+$"):
        quietly(file if file.parent == tmp_path else file.parent)


def mutated(text, random):
    """Return a table, spoiled in one to three ways."""
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(0, len(text) + 1))
        length = int(random.integers(0, 9))
        choices = [
            text[:place] + text[place + length :],
            text[:place] + random.bytes(length) + text[place:],
            text[:place]
            + [b"\0", b'"', b"\r", b"\xff\xfe", b"\xef\xbb\xbf", b",,", b"nan"][length % 7]
            + text[place:],
            text[:place] + text[place : place + 20] * 50 + text[place:],
            text.decode("latin-1").encode(["utf-16", "utf-32", "utf-8-sig", "utf-7"][length % 4]),
            text.replace(b",", [b"\t", b";", b"|", b" "][length % 4]),
        ]
        text = choices[random.integers(0, len(choices))]
    return text


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "cub/image_class_labels.txt", "lfw/pairs.txt"])
def test_mutated_tables_are_read_or_refused_in_one_line(tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    if name == "x.parquet":
        columns = {"path": ["1.jpg", "2.jpg"], "label": ["wren", "auk"], "box": [[1.0, 2.0, 3.0, 4.0], None]}
        content = write_parquet(file, columns).read_bytes()
    elif name == "x.csv":
        content = b'path,label,split,box,group\n1.jpg,wren,train,0 0 20 10,"a, b"\n2.jpg,auk,test,,b\n'
    elif name == "lfw/pairs.txt":
        images(file.parent, "Ann/Ann_0001.jpg", "Ann/Ann_0002.jpg")
        content = b"1\t1\nAnn\t1\t2\nAnn\t1\tAnn\t2\n"
    else:
        content = (cub_copy(file.parent) / file.name).read_bytes()
    random = np.random.default_rng(0)
    for _ in range(100):
        file.write_bytes(mutated(content, random))
        assert_read_or_refused(file if file.parent == tmp_path else file.parent)


def assert_read_or_refused(path):
    refusal = ""
    try:
        quietly(path)
    except (UserError, OSError) as error:  # anything else is a bug
        refusal = str(error)
    assert len(refusal) <= 2000
    assert "\n" not in refusal


def test_a_matlab_file_that_crashes_its_reader_is_refused(tmp_path, monkeypatch):
    """As damaged ones do to scipy's; not one of those, as another version may not crash."""
    savemat(tmp_path / "cars_annos.mat", {"annotations": [1], "class_names": CAR_CLASSES})
    monkeypatch.setattr("firstpage.data.readers.cars._LOAD", "import os, signal; os.kill(os.getpid(), 11)")
    with pytest.raises(UserError, match=r"cars_annos\.mat: cannot read 'annotations' \(its reader crashed\)"):
        read(tmp_path)


# Finding the layout


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind != "glyphs"])
def test_wrong_folder_is_one_line(tmp_path, kind):
    with pytest.raises((FileNotFoundError, ValueError), match=r"^[^\n]+$") as caught:
        read(tmp_path, kind)
    assert str(tmp_path) in str(caught.value)


def test_path_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"read\('.*nowhere'\): no such file or folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no images; expected .*/<class>/<image>\.jpg"):
        read(images(tmp_path, "1.txt"))
    with pytest.raises(ValueError, match="neither a folder nor a table; extract it, or set kind="):
        read(images(tmp_path, "birds.zip") / "birds.zip")
    with pytest.raises(ValueError, match=r"kind='birds'\): must be one of cub, cars, .*, glyphs$"):
        read(tmp_path, "birds")
    with pytest.raises(FileNotFoundError, match=r"contains glyphs.json$"):
        read(tmp_path, "glyphs")


def test_two_datasets_in_one_folder_are_not_guessed_between(tmp_path):
    cub_copy(tmp_path / "CUB_200_2011")
    write(tmp_path / "products", {"Ebay_train.txt": HEADER})
    with pytest.raises(ValueError, match="contains cub and sop; give the folder of one, or set kind="):
        read(tmp_path)
    assert quietly(tmp_path, "cub").name == "cub"


def test_glyphs_are_read_from_the_folder_they_were_drawn_into(tmp_path, monkeypatch):
    for name, ranges in (("_TRAIN", {"latin": "41-44"}), ("_TEST", {"greek": "3B1-3B2"})):
        monkeypatch.setattr(importlib.import_module("firstpage.data.glyphs"), name, ranges)
    drawn = draw_glyphs(tmp_path / "glyphs", images=1, seed=3)
    for path in (tmp_path, tmp_path / "glyphs"):
        assert read(path).paths == drawn.paths


def test_torch_and_matplotlib_are_imported_only_when_asked_for():
    code = "import sys, firstpage.data.readers; print({'torch', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_rows_by_name_of_many_names():
    """Twenty thousand took ten seconds, and four times that for twice as many."""
    names = [f"split {number}" for number in range(20_000)]
    rows = rows_by_name([*names, "", *names])
    assert list(rows) == names
    assert all(rows[name].tolist() == [row, row + 20_001] for row, name in enumerate(names))
