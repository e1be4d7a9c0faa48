"""Any folder of class folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.layout import folders_in, images_below, is_image, rows_by_name

SPLITS = ("train", "val", "test", "query", "gallery")


def folder(path: Path) -> Catalog:
    """Reads class folders, or class folders in folders named after splits.

        wren/1.jpg  auk/1.jpg
        train/wren/1.jpg  test/auk/1.jpg, also val/, query/ and gallery/

    Folders are splits if all of them have such names, or at least two do (a class may be called "train").
    The same class in two splits has one label.

    Args:
        path: The folder.

    Raises:
        FileNotFoundError: There are no images in class folders.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("train/wren/1.jpg", "test/auk/1.jpg"):
        ...         Path(root, name).parent.mkdir(parents=True)
        ...         Path(root, name).touch()
        ...     catalog = folder(Path(root))
        >>> catalog.paths, catalog.classes, sorted(catalog.splits)
        (['train/wren/1.jpg', 'test/auk/1.jpg'], ['auk', 'wren'], ['test', 'train'])
    """
    names = folders_in(path)
    splits = [split for split in SPLITS if split in names]
    if len(splits) > 1 or (splits and splits == names):
        return from_folders("folder", path, splits)
    return from_folders("folder", path)


def from_folders(name: str, root: Path, parts: Sequence[str] = ("",)) -> Catalog:
    """The catalog of the class folders in some parts of `root`; parts with a name are splits.

    Raises:
        FileNotFoundError: There are no images in class folders.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     from_folders("lfw", Path(root, "faces"))
        Traceback (most recent call last):
        FileNotFoundError: read('...faces', kind='lfw'): no images; expected faces/<class>/<image>.jpg
    """
    found = [(part, class_name) for part in parts for class_name in folders_in(root / part)]
    classes = sorted({class_name for _, class_name in found})
    label_of = {class_name: label for label, class_name in enumerate(classes)}
    paths: list[str] = []
    labels: list[int] = []
    split_of: list[str] = []
    for part, class_name in found:
        images = images_below(root, f"{part}/{class_name}" if part else class_name)
        paths += images
        labels += [label_of[class_name]] * len(images)
        split_of += [part] * len(images)
    if not paths:
        expected = f"{root.name}/<class>/<image>.jpg"
        raise FileNotFoundError(f"read({str(root)!r}, kind={name!r}): no images; expected {expected}")
    return Catalog(
        name,
        root,
        paths,
        np.array(labels),
        classes,
        rows_by_name(split_of),
        warnings=[f"{name}: {fault}" for fault in _outside(root, parts)],
    )


def _outside(root: Path, parts: Sequence[str]) -> list[str]:
    """Images that lie beside the class folders, and folders that lie beside the splits."""
    faults = []
    for place in {root, *(root / part for part in parts)}:
        visible = [name for name in sorted(os.listdir(place)) if name[0] != "."]
        loose = [name for name in visible if is_image(name) and not (place / name).is_dir()]
        if loose:
            faults.append(
                f"{len(loose):,} images in {str(place)!r} are in no class folder, the first is {loose[0]!r}"
            )
    others = [name for name in folders_in(root) if any(parts) and name not in parts]
    if others:
        faults.append(f"folders beside {', '.join(parts)} are not read: {', '.join(others)}")
    return sorted(faults)
