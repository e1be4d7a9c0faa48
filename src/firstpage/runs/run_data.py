"""Which data a run was trained on."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from firstpage.data import read
from firstpage.data.catalog import Catalog
from firstpage.errors import UserError
from firstpage.runs.folder import fingerprint
from firstpage.runs.record import Record

# Runs of before recorded the folder of a table, but not the name of its file.
_TABLE_SUFFIXES = {"csv": (".csv", ".tsv"), "parquet": (".parquet", ".pq")}


def find_data(record: Record) -> Catalog:
    """Read the dataset a run was trained on, if it is still in its folder and unchanged.

    Raises:
        FileNotFoundError: It was moved or changed.

    >>> from firstpage.recipes.recipe import Recipe
    >>> find_data(Record(Path("runs/a"), Recipe(), {"data": {"name": "cub", "root": "birds"}}, []))
    Traceback (most recent call last):
    FileNotFoundError: runs/a: its data (cub in birds) was moved or changed: pass the dataset with --data
    """
    about = _data(record)
    name, root = str(about.get("name", "")), Path(str(about.get("root", "")))
    # The root of a catalog is the folder of its images: the annotations may be in its parent.
    candidates: list[str | Path] = [root, root.parent]
    candidates += ["glyphs"] if name == "glyphs" else []
    if root.is_dir():
        candidates += [root / about["file"]] if about.get("file") else []
        suffixes = _TABLE_SUFFIXES.get(name, ())
        candidates += sorted(path for suffix in suffixes for path in root.glob(f"*{suffix}"))
    for path in candidates:
        try:
            with warnings.catch_warnings():  # training showed them already
                warnings.simplefilter("ignore")
                catalog = read(path, kind=name, classes=about.get("classes"))
        except (OSError, ValueError, TypeError, ImportError):
            continue
        if is_same_data(record, catalog):
            return catalog
    raise FileNotFoundError(
        f"{record.folder}: its data ({name} in {root}) was moved or changed: pass the dataset with --data"
    )


def read_data(record: Record | None, path: str, classes: str | None = None) -> Catalog:
    """Read a dataset for a run: one that the run was trained on with the same classes as in training.

    Args:
        record: The run; None for a saved model, or if there is no model.
        path: The dataset, or a run folder for the dataset of that run.
        classes: See `firstpage.data.read`. Defaults to that of the run for its own data.

    >>> read_data(None, "nowhere")
    Traceback (most recent call last):
    FileNotFoundError: read('nowhere'): no such file or folder
    """
    if is_run_folder(path):
        if classes is not None:
            raise UserError(f"classes={classes!r}: {path} is a run: name its data to read it this way")
        return find_data(Record.read(path))
    rule = _data(record).get("classes")
    if classes is None and rule not in (None, "leaf"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                catalog = read(path, classes=rule)
            if is_trained_on(record, catalog):
                return catalog
        except (OSError, ValueError):
            pass  # other data: read below as if there were no run
    return read(path, classes=classes)


def is_run_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether the path is a run folder, which stands for its dataset wherever one is expected.

    >>> is_run_folder("nowhere")
    False
    """
    return Path(path, "run.json").is_file()


def is_same_data(record: Record | None, catalog: Catalog) -> bool:
    """Return whether a run was trained on exactly this dataset, in whichever folder it is now.

    >>> is_same_data(None, Catalog("toy", Path(), list("ab"), np.arange(2), ["auk", "wren"], {}))
    False
    """
    return _data(record).get("fingerprint") == fingerprint(catalog)


def is_trained_on(record: Record | None, catalog: Catalog) -> bool:
    """Return whether a run was trained on this dataset, or on an earlier version of it.

    >>> from firstpage.recipes import Recipe
    >>> catalog = Catalog("toy", Path(), list("ab"), np.arange(2), ["auk", "wren"], {})
    >>> record = Record(Path("run"), Recipe(), {"data": {"fingerprint": fingerprint(catalog)}}, [])
    >>> is_trained_on(record, catalog), is_trained_on(None, catalog)
    (True, False)
    """
    return _is_same_root(record, catalog) or is_same_data(record, catalog) or is_moved(record, catalog)


def _is_same_root(record: Record | None, catalog: Catalog) -> bool:
    about = _data(record)  # the name tells single images of that folder from the dataset
    return (about.get("root"), about.get("name")) == (str(catalog.root.resolve()), catalog.name)


def is_moved(record: Record | None, catalog: Catalog) -> bool:
    """Return whether a dataset is another version of a run's in another folder, as far as its classes tell.

    It has most of the classes that the run was trained on, and others.

    >>> from firstpage.recipes import Recipe
    >>> catalog = Catalog("toy", Path(), list("abc"), np.arange(3), ["auk", "crow", "wren"], {})
    >>> about = {"name": "toy", "root": "elsewhere", "train_classes": ["auk", "crow", "owl"]}
    >>> is_moved(Record(Path("run"), Recipe(), {"data": about}, []), catalog)
    True
    """
    about = _data(record)
    trained = set(about.get("train_classes") or ())
    if about.get("name") != catalog.name or _is_same_root(record, catalog):
        return False
    classes = set(catalog.classes)
    alike = 2 * len(trained & classes) > len(trained) and not trained >= classes
    return alike and not is_same_data(record, catalog)  # last, as it reads all paths


def _data(record: Record | None) -> dict[str, Any]:
    """Return what `run.json` records about the data."""
    return {} if record is None else record.about.get("data") or {}


def restore_splits(record: Record | None, catalog: Catalog) -> Catalog:
    """Split a dataset that has no splits and has changed since training by the recorded training classes.

    A new random split would test classes that the run was trained on. Any other dataset is returned as is.

    >>> from firstpage.recipes import Recipe
    >>> catalog = Catalog("toy", Path(), list("abc"), np.arange(3), ["auk", "crow", "wren"], {})
    >>> about = {"name": "toy", "root": str(Path().resolve()), "train_classes": ["auk", "owl"]}
    >>> restore_splits(Record(Path("run"), Recipe(), {"data": about}, []), catalog).split("test").classes
    ['crow', 'wren']
    """
    names = _data(record).get("train_classes")
    changed = is_trained_on(record, catalog) and not is_same_data(record, catalog)
    if catalog.splits or not names or not changed:
        return catalog
    train = np.isin(np.array(catalog.classes, object)[catalog.labels], names)
    return replace(catalog, splits={"train": np.flatnonzero(train), "test": np.flatnonzero(~train)})
