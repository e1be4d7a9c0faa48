"""The catalog: restricting it, splitting it by class, and refusing arrays that do not fit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstpage.data import Catalog
from firstpage.data.catalog import VerificationPairs


def catalog_of(labels, **fields):
    labels = np.asarray(labels, np.int64)
    names = [f"class {label}" for label in range(labels.max(initial=-1) + 1)]
    return Catalog(
        "x",
        Path("root"),
        [f"{row}.jpg" for row in range(labels.size)],
        labels,
        names,
        **{"splits": {}, **fields},
    )


@pytest.fixture
def full():
    """Six rows with everything a catalog can have; class 1 has no image."""
    return catalog_of(
        [3, 0, 2, 0, 3, 2],
        splits={"train": np.array([1, 2, 3]), "gallery": np.array([1, 2, 3]), "query": np.array([0, 5])},
        boxes=np.arange(24, dtype=np.float32).reshape(6, 4),
        groups=np.array([1, 0, 2, 0, 1, 2]),
        group_names=["sea", "wood", "marsh"],
        pairs=VerificationPairs(
            np.array([0, 0, 1]), np.array([1, 0, 2]), np.array([3, 4, 3]), np.array([True, True, False])
        ),
        warnings=["noticed"],
    )


def test_split_renumbers_labels_and_keeps_order(full):
    train = full.split("train")
    assert train.paths == ["1.jpg", "2.jpg", "3.jpg"]
    assert train.labels.tolist() == [0, 1, 0]
    assert train.classes == ["class 0", "class 2"]
    assert train.boxes.tolist() == full.boxes[1:4].tolist()
    assert train.groups.tolist() == [0, 1, 0]
    assert train.group_names == ["sea", "marsh"]
    assert train.warnings == ["noticed"]


def test_split_keeps_what_other_splits_share_with_it(full):
    splits = full.split("gallery").splits
    assert {name: rows.tolist() for name, rows in splits.items()} == {
        "train": [0, 1, 2],
        "gallery": [0, 1, 2],
    }


def test_pairs_keep_those_with_both_images(full):
    pairs = full.split("train").pairs
    assert (pairs.folds.tolist(), pairs.left.tolist(), pairs.right.tolist()) == ([0, 1], [0, 1], [2, 2])
    assert pairs.same.tolist() == [True, False]


def test_take_keeps_the_order_given_and_accepts_a_mask(full):
    part = full.take([5, 1, 0])
    assert part.paths == ["5.jpg", "1.jpg", "0.jpg"]
    assert [part.classes[label] for label in part.labels] == ["class 2", "class 0", "class 3"]
    assert part.splits["query"].tolist() == [0, 2]
    mask = np.array([True, False, False, False, False, True])
    assert full.take(mask).paths == ["0.jpg", "5.jpg"]
    assert len(full.take([])) == 0


def test_summary_says_what_is_there(full):
    assert full.summary().splitlines() == [
        "x: 6 images, 3 classes, boxes, 3 groups, 3 pairs",
        "  train: 3 images, 2 classes",
        "  gallery: 3 images, 2 classes",
        "  query: 2 images, 2 classes",
        "  warning: noticed",
    ]


def test_unknown_split_names_those_there_are(full):
    with pytest.raises(
        ValueError, match=r"split\('test'\): catalog 'x' has no such split; it has train, gallery"
    ):
        full.split("test")
    with pytest.raises(ValueError, match=r"make one with split_classes\(\)"):
        replace(full, splits={}).split("test")


@given(st.lists(st.integers(0, 9), min_size=1), st.none() | st.integers(0, 5), st.integers(1, 9))
def test_split_classes_parts_classes_and_covers_rows(labels, seed, count):
    catalog = catalog_of(labels)
    there = set(labels)
    if count >= len(there):
        with pytest.raises(ValueError, match="needs at least two" if len(there) < 2 else "on each side"):
            catalog.split_classes(count, seed=seed)
        return
    splits = catalog.split_classes(count, seed=seed).splits
    train, test = ({labels[row] for row in splits[name]} for name in ("train", "test"))
    assert not train & test
    assert len(test) == count
    assert sorted([*splits["train"], *splits["test"]]) == list(range(len(labels)))


@given(st.lists(st.integers(0, 9), min_size=2), st.none() | st.integers(0, 5), st.integers(2, 9))
def test_folds_test_each_class_once(labels, seed, folds):
    catalog = catalog_of(labels)
    if folds > len(set(labels)):
        with pytest.raises(ValueError, match="the number of classes"):
            catalog.split_classes(folds=folds, seed=seed)
        return
    parts = catalog.split_classes(folds=folds, seed=seed)
    tested = [{labels[row] for row in part.splits["test"]} for part in parts]
    assert sorted(label for part in tested for label in part) == sorted(set(labels))
    for part, classes in zip(parts, tested, strict=True):
        assert {labels[row] for row in part.splits["train"]} == set(labels) - classes


def test_split_classes_takes_the_last_half_unless_seeded():
    catalog = catalog_of(np.arange(200).repeat(2))
    assert catalog.split_classes().splits["test"].tolist() == list(range(200, 400))
    assert len(catalog.split_classes(0.25).split("test").classes) == 50
    shuffled, again, other = (catalog.split_classes(seed=seed).splits["test"].tolist() for seed in (0, 0, 1))
    assert shuffled == again != other
    assert shuffled != list(range(200, 400))


@pytest.mark.parametrize("test", [0, 0.0, 1.0, 1.5, -1, 3, 0.01])
def test_split_classes_refuses_an_empty_side(test):
    with pytest.raises(ValueError, match=rf"split_classes\(test={test}\): must be a share"):
        catalog_of([0, 1, 2]).split_classes(test)


def test_split_classes_refuses_both_arguments():
    with pytest.raises(ValueError, match="give one of the two"):
        catalog_of([0, 1, 2]).split_classes(0.5, folds=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": np.array([0])}, r"Catalog\(labels\): shape \(1,\) does not fit 2 paths"),
        ({"labels": np.array([0, 2])}, r"Catalog\(labels\): 0\.\.2 must be in 0\.\.1"),
        ({"labels": np.array([-1, 0])}, r"Catalog\(labels\): -1\.\.0 must be in 0\.\.1"),
        ({"boxes": np.zeros((2, 3), np.float32)}, r"Catalog\(boxes\): shape \(2, 3\)"),
        ({"groups": np.array([0, 0])}, r"Catalog\(groups\): 0\.\.0 must be in"),
        ({"splits": {"test": np.array([1, 0])}}, r"rows of 'test' must be ascending"),
        ({"splits": {"test": np.array([2])}}, r"rows of 'test' must be ascending and in 0\.\.1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        replace(catalog_of([0, 1]), **fields)
