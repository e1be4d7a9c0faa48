"""Folders of class folders."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.layout import (
    LISTED_SUFFIXES,
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
    """Read class folders, or class folders within folders named after splits.

        wren/1.jpg  auk/1.jpg
        train/wren/1.jpg  test/auk/1.jpg, also val/, query/ and gallery/, in any case

    Folders are splits if all of them, or at least two, have such names (a class may be called "train"). A
    class that is in two splits has one label.

    Args:
        path: The folder.
        unlabeled: If there are no images in class folders, accept those outside as one class named `path`.

    Raises:
        FileNotFoundError: There are no images in class folders.

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
    """Return the catalog of the class folders in some subfolders of `root`, which are its splits unless "".

    Raises:
        FileNotFoundError: There are no images in class folders.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     read_class_folders("lfw", Path(root, "faces"))
    Traceback (most recent call last):
    FileNotFoundError: read('...faces', kind='lfw'): no images; expected faces/<class>/<image>.jpg
    """
    folders = [(part, class_name) for part in parts for class_name in list_folders(root / part)]
    classes = sorted({class_name for _, class_name in folders})
    label_of = {class_name: label for label, class_name in enumerate(classes)}
    paths: list[str] = []
    labels: list[int] = []
    split_of: list[str] = []
    suffixes: Counter[str] = Counter()
    for part, class_name in folders:
        files = list_image_files(root, f"{part}/{class_name}" if part else class_name)
        suffixes.update(map(suffix, files))
        images = list(filter(is_image, files))
        paths += images
        labels += [label_of[class_name]] * len(images)
        split_of += [normalize_split(part)] * len(images)
    loose = {part: _list_loose_files(root / part) for part in ("", *filter(None, parts))}
    suffixes.update(suffix(file) for files in loose.values() for file in files)
    unread = {ending: count for ending, count in suffixes.items() if ending in UNREAD_SUFFIXES}
    outside = [f"{part}/{file}" if part else file for part in loose for file in filter(is_image, loose[part])]
    if unlabeled and outside and not paths:
        zeros = np.zeros(len(outside), np.int64)
        return Catalog(name, root, outside, zeros, [root.resolve().name], {}, unread=unread)
    if not paths:
        expected = f"{root.name}/<class>/<image>.jpg"
        problem = f"no images; {'; '.join(unread_notes(unread)) or f'expected {expected}'}"
        if outside:
            problem = f"{len(outside):,} images are outside class folders; move them to {expected}"
        raise FileNotFoundError(f"read({str(root)!r}, kind={name!r}): {problem}")
    return Catalog(
        name,
        root,
        paths,
        np.array(labels),
        classes,
        rows_by_name(split_of),
        unread=unread,
        warnings=[f"{name}: {problem}" for problem in _find_strays(root, loose)],
    )


def _list_loose_files(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder itself that look like images."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    images = [name for name in names if suffix(name) in LISTED_SUFFIXES]
    return [name for name in images if name[0] != "." and not (folder / name).is_dir()]


def _find_strays(root: Path, loose: Mapping[str, list[str]]) -> list[str]:
    """Describe images outside the class folders, and folders outside the splits."""
    problems = []
    for part, files in loose.items():
        images = list(filter(is_image, files))
        if images:
            folder = str(root / part)
            problems.append(
                f"{len(images):,} images in {folder!r} are in no class folder, the first is {images[0]!r}"
            )
    parts = [part for part in loose if part]
    others = [name for name in list_folders(root) if parts and name not in parts]
    if others:
        problems.append(f"folders beside {', '.join(parts)} are ignored: {', '.join(others)}")
    return sorted(problems)
