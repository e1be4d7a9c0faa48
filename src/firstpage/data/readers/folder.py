"""Any folder of class folders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.layout import (
    SPLITS,
    UNREAD_SUFFIXES,
    is_image,
    list_folders,
    list_image_files,
    normalize_split,
    rows_by_name,
    suffix,
)
from firstpage.data.readers.survey import unread_notes


def read_folder(path: Path, *, unlabeled: bool = False) -> Catalog:
    """Reads class folders, or class folders in folders named after splits.

        wren/1.jpg  auk/1.jpg
        train/wren/1.jpg  test/auk/1.jpg, also val/, query/ and gallery/, in any case

    Folders are splits if all of them have such names, or at least two do (a class may be called "train").
    The same class in two splits has one label.

    Args:
        path: The folder.
        unlabeled: Where no image lies in a class folder, take those outside as one class, named `path`.

    Raises:
        FileNotFoundError: There are no images in class folders.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("train/wren/1.jpg", "test/auk/1.jpg"):
        ...         Path(root, name).parent.mkdir(parents=True)
        ...         Path(root, name).touch()
        ...     catalog = read_folder(Path(root))
        >>> catalog.paths, catalog.classes, sorted(catalog.splits)
        (['train/wren/1.jpg', 'test/auk/1.jpg'], ['auk', 'wren'], ['test', 'train'])
    """
    names = list_folders(path)
    splits = [name for split in SPLITS for name in names if normalize_split(name) == split]
    parts = splits if len(splits) > 1 or splits == names else []
    return read_class_folders("folder", path, parts or [""], unlabeled=unlabeled)


def read_class_folders(
    name: str, root: Path, parts: Sequence[str] = ("",), *, unlabeled: bool = False
) -> Catalog:
    """The catalog of the class folders in some parts of `root`; parts with a name are splits, in lower case.

    Raises:
        FileNotFoundError: There are no images in class folders.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     read_class_folders("lfw", Path(root, "faces"))
        Traceback (most recent call last):
        FileNotFoundError: read('...faces', kind='lfw'): no images; expected faces/<class>/<image>.jpg
    """
    found = [(part, class_name) for part in parts for class_name in list_folders(root / part)]
    classes = sorted({class_name for _, class_name in found})
    label_of = {class_name: label for label, class_name in enumerate(classes)}
    paths: list[str] = []
    labels: list[int] = []
    split_of: list[str] = []
    kinds: Counter[str] = Counter()
    for part, class_name in found:
        files = list_image_files(root, f"{part}/{class_name}" if part else class_name)
        kinds.update(map(suffix, files))
        images = list(filter(is_image, files))
        paths += images
        labels += [label_of[class_name]] * len(images)
        split_of += [normalize_split(part)] * len(images)
    loose = {part: _loose(root / part) for part in ("", *filter(None, parts))}
    kinds.update(suffix(file) for files in loose.values() for file in files)
    not_read = {kind: count for kind, count in kinds.items() if kind in UNREAD_SUFFIXES}
    outside = [f"{part}/{file}" if part else file for part in loose for file in filter(is_image, loose[part])]
    if unlabeled and outside and not paths:
        zeros = np.zeros(len(outside), np.int64)
        return Catalog(name, root, outside, zeros, [root.resolve().name], {}, unread=not_read)
    if not paths:
        fault = _nothing(root.name, len(outside), not_read)
        raise FileNotFoundError(f"read({str(root)!r}, kind={name!r}): {fault}")
    return Catalog(
        name,
        root,
        paths,
        np.array(labels),
        classes,
        rows_by_name(split_of),
        unread=not_read,
        warnings=[f"{name}: {fault}" for fault in _beside(root, loose)],
    )


def _loose(place: Path) -> list[str]:
    """Files named like images that lie in a folder itself, sorted."""
    names = sorted(os.listdir(place)) if place.is_dir() else []
    return [
        name
        for name in names
        if name[0] != "."
        and (is_image(name) or suffix(name) in UNREAD_SUFFIXES)
        and not (place / name).is_dir()
    ]


def _nothing(root: str, outside: int, not_read: Mapping[str, int]) -> str:
    """Why there is no image in class folders, and what to do."""
    expected = f"{root}/<class>/<image>.jpg"
    if outside:
        return f"{outside:,} images lie outside class folders: move them to {expected}"
    return f"no images; {'; '.join(unread_notes(not_read)) or f'expected {expected}'}"


def _beside(root: Path, loose: Mapping[str, list[str]]) -> list[str]:
    """Images that lie beside the class folders, and folders that lie beside the splits."""
    faults = []
    for part, files in loose.items():
        images = list(filter(is_image, files))
        if images:
            place = str(root / part)
            faults.append(
                f"{len(images):,} images in {place!r} are in no class folder, the first is {images[0]!r}"
            )
    parts = [part for part in loose if part]
    others = [name for name in list_folders(root) if parts and name not in parts]
    if others:
        faults.append(f"folders beside {', '.join(parts)} are not read: {', '.join(others)}")
    return sorted(faults)
