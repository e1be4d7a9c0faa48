"""Folders of images whose classes are folders, at any depth, or parts of file names."""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.layout import (
    LISTED_SUFFIXES,
    SPLITS,
    UNREAD_SUFFIXES,
    encode_names,
    is_image,
    list_folders,
    list_image_files,
    normalize_split,
    rows_by_name,
    suffix,
)
from firstpage.data.readers.survey import unread_notes
from firstpage.errors import UserError

MAX_NOTES = 3  # on folders that are named like splits
FILLERS = re.compile(r"[^a-z]+|(?:set|images?|data|split)\b")  # of train_set and Test-Images

ClassOf = Callable[[str], str | None]  # from a path below the split to its class, or None


def read_folder(path: Path, *, classes: str = "leaf", unlabeled: bool = False) -> Catalog:
    r"""Read class folders, or class folders within folders named after splits.

        wren/1.jpg  auk/1.jpg
        birds/wren/1.jpg  fish/cod/1.jpg
        train/wren/1.jpg  test/auk/1.jpg, also val/, query/ and gallery/, in any case

    Folders are splits if all of them, or at least two, have such names (a class may be called "train");
    `training`, `validation`, `valid` and `testing` are understood too. A class that is in two splits has one
    label. Where images lie deeper, a class is named by its path ("birds/wren"), and the outermost folders are
    its super-classes (`Catalog.groups`). `Catalog.notes` tells what was taken for what.

    Args:
        path: The folder.
        classes: What makes a class: `leaf`, the innermost folder of an image; `top`, the outermost one;
            `depth=2`, the two outermost; or a regular expression with one group, which is looked for in the
            file name: `(\d+)_` finds the class 17633752 of `17633752_3.jpg`.
        unlabeled: If there are no images in class folders, accept those outside as one class named `path`.

    Raises:
        FileNotFoundError: There are no images in class folders.
        UserError: `classes` is not valid, or fits no file.

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
    catalog = read_class_folders("folder", path, parts or [""], classes=classes, unlabeled=unlabeled)
    notes = catalog.notes + _unused_splits(catalog.paths, bool(parts))
    return replace(catalog, class_rule=classes, notes=notes)


def read_class_folders(
    name: str,
    root: Path,
    parts: Sequence[str] = ("",),
    *,
    classes: str = "top",
    unlabeled: bool = False,
) -> Catalog:
    """Return the catalog of the images in some subfolders of `root`, which are its splits unless "".

    Args:
        name: The kind of dataset.
        root: Its folder.
        parts: The subfolders.
        classes: See `read_folder`.
        unlabeled: See `read_folder`.

    Raises:
        FileNotFoundError: There are no images in class folders.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     read_class_folders("lfw", Path(root, "faces"))
    Traceback (most recent call last):
    FileNotFoundError: read('...faces', kind='lfw'): no images; expected faces/<class>/<image>.jpg
    """
    class_of = _class_rule(classes)
    by_name = classes not in ("leaf", "top") and not classes.startswith("depth=")
    loose = {part: _list_loose_files(root / part) for part in ("", *filter(None, parts))}
    files: list[tuple[str, str]] = []  # split, path below it
    empty: set[str] = set()
    for part in parts:
        for folder in list_folders(root / part):
            hollow: list[str] = []
            found = list_image_files(root / part, folder, hollow)
            files += [(part, file) for file in found]
            empty |= set() if by_name else {class_of(f"{name}/") or "" for name in hollow}
        if by_name:  # needs no folders
            files += [(part, file) for file in loose.pop(part)]
    suffixes = Counter(suffix(file) for _, file in files)
    suffixes.update(suffix(file) for stray in loose.values() for file in stray)
    unread = {ending: count for ending, count in suffixes.items() if ending in UNREAD_SUFFIXES}
    outside = [f"{part}/{file}" if part else file for part in loose for file in filter(is_image, loose[part])]

    images = [(part, file, class_of(file)) for part, file in files if is_image(file)]
    labeled = [(part, file, label) for part, file, label in images if label is not None]
    paths = [f"{part}/{file}" if part else file for part, file, _ in labeled]
    if unlabeled and outside and not paths:
        zeros = np.zeros(len(outside), np.int64)
        return Catalog(name, root, outside, zeros, [root.resolve().name], {}, unread=unread)
    if not paths:
        raise _no_images(name, root, classes if images else "", unread, outside)
    unread_classes = {label for _, file in files if not is_image(file) and (label := class_of(file))}
    names = sorted({label for _, _, label in labeled} | unread_classes | empty)
    label_of = {label: number for number, label in enumerate(names)}
    warnings = _find_strays(root, loose)
    if len(labeled) < len(images):
        first = next(file for _, file, label in images if label is None)
        warnings.append(f"{len(images) - len(labeled):,} images do not fit {classes!r}, such as {first!r}")
    catalog = Catalog(
        name,
        root,
        paths,
        np.array([label_of[label] for _, _, label in labeled]),
        names,
        rows_by_name([normalize_split(part) for part, _, _ in labeled]),
        unread=unread,
        warnings=[f"{name}: {problem}" for problem in warnings],
    )
    return _with_groups(catalog, [file for _, file, _ in labeled], classes, by_name)


def _class_rule(classes: str) -> ClassOf:
    """Return what gives the class of a path below its split."""
    if classes == "leaf":
        return lambda file: file.rpartition("/")[0]
    depth = "1" if classes == "top" else classes.removeprefix("depth=")
    if classes == "top" or classes.startswith("depth="):
        if not depth.isdecimal() or int(depth) < 1:
            raise UserError(f"classes={classes!r}: write a number of folders, such as depth=2")
        return lambda file: "/".join(file.split("/")[:-1][: int(depth)])
    try:
        pattern = re.compile(classes)
    except re.error as error:
        raise UserError(f"classes={classes!r}: is no regular expression: {error}") from None
    if pattern.groups != 1:
        raise UserError(
            f"classes={classes!r}: use leaf, top, depth=N, or a regular expression with one group, such as "
            r"'(\d+)_' for 17633752_3.jpg"
        )

    def from_name(file: str) -> str | None:
        found = pattern.search(file.rpartition("/")[2])
        return (found[1] or None) if found else None

    return from_name


def _with_groups(catalog: Catalog, files: Sequence[str], classes: str, by_name: bool) -> Catalog:
    """Add the outermost folders as super-classes, and a note, if classes are not just the folders."""
    depths = {file.count("/") for file in files}
    if depths == {1} and not by_name:
        return catalog
    present = np.unique(catalog.labels)
    count = f"{len(present):,} {'class' if len(present) == 1 else 'classes'}"
    if classes == "top":
        note = f"{count}: the outermost folders, whatever folders are in them"
        return replace(catalog, notes=[note])
    first = f"such as {catalog.classes[present[-1]]!r}"
    if by_name:
        rule = f"what {classes!r} finds in file names, {first}"
    elif classes == "leaf":
        rule = f"the innermost folders, {first}: --classes top|depth=N|PATTERN to change"
        if len(depths) > 1:
            rule = (
                f"the folders that hold images, {first} (not all are equally deep): --classes top to change"
            )
    else:
        rule = f"the {classes.removeprefix('depth=')} outermost folders, {first}"
    if 0 in depths:  # files outside folders: there are no super-classes
        return replace(catalog, notes=[f"{count}; classes are {rule}"])
    groups, group_names = encode_names([file.split("/", 1)[0] for file in files])
    among = f"{len(group_names):,} {'group' if len(group_names) == 1 else 'groups'}"
    note = f"{count} in {among}; classes are {rule}"
    return replace(catalog, groups=groups, group_names=group_names, notes=[note])


def _unused_splits(paths: Sequence[str], split: bool) -> list[str]:
    """Say why folders that are named like splits are none; `split` if the outermost folders are splits."""
    inner: dict[str, tuple[int, str]] = {}  # the first folder of each such name, and how deep it is
    for folder in dict.fromkeys(path.rpartition("/")[0] for path in paths):
        names = folder.split("/")
        for depth in range(int(split), len(names)):
            words = list(filter(None, FILLERS.split(names[depth].lower())))
            if words and all(normalize_split(word) in SPLITS for word in words):
                inner.setdefault(names[depth], (depth, "/".join(names[: depth + 1])))
    notes = []
    for name, (depth, folder) in sorted(inner.items())[:MAX_NOTES]:
        reason = "splits are the outermost folders"
        if depth == 0:
            reason = "two or more folders with such names are splits, one beside others is a class"
            if normalize_split(name) not in SPLITS:
                reason = f"splits are named {', '.join(SPLITS)}"
        notes.append(f"{folder!r} is no split: {reason}")
    return notes


def _no_images(
    name: str, root: Path, classes: str, unread: Mapping[str, int], outside: Sequence[str]
) -> Exception:
    """Return the error of a folder without labeled images."""
    expected = f"{root.name}/<class>/<image>.jpg"
    problem = f"no images; {'; '.join(unread_notes(unread)) or f'expected {expected}'}"
    if classes:
        return UserError(f"classes={classes!r}: fits no file name in {root}")
    if outside:
        problem = (
            f"{len(outside):,} images are outside class folders; move them to {expected}, or, if their names "
            r"say the class, name it with --classes '(\w+)_'"
        )
    return FileNotFoundError(f"read({str(root)!r}, kind={name!r}): {problem}")


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
