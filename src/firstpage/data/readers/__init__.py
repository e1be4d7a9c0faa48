"""Readers of datasets, each in the layout in which it is distributed."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from firstpage._text import summary
from firstpage.data.catalog import Catalog
from firstpage.data.readers.cars import read_cars
from firstpage.data.readers.casia import read_casia
from firstpage.data.readers.cub import read_cub
from firstpage.data.readers.folder import read_folder
from firstpage.data.readers.hotels50k import read_hotels50k
from firstpage.data.readers.inshop import read_inshop
from firstpage.data.readers.layout import MARKERS, find_root, require_root
from firstpage.data.readers.lfw import read_lfw
from firstpage.data.readers.sop import read_sop
from firstpage.data.readers.survey import find_problems
from firstpage.data.readers.table import read_csv, read_parquet
from firstpage.errors import UserError

__all__ = ["describe", "kinds", "read"]


def _read_glyphs(path: Path | None, **options: Any) -> Catalog:  # noqa: ANN401
    """Read the glyphs: characters of many scripts, drawn by firstpage itself, with no download."""
    from firstpage.data.glyphs import INDEX, draw_glyphs, read_settings  # matplotlib takes a second to import

    if path is not None:
        folder = require_root(path, "glyphs")
        settings = read_settings(folder / INDEX)
        options = {"folder": folder, "images": settings["images"], "seed": settings["seed"]} | options
    return draw_glyphs(**options)


_READERS: dict[str, Callable[..., Catalog]] = {
    "cub": read_cub,
    "cars": read_cars,
    "sop": read_sop,
    "inshop": read_inshop,
    "hotels50k": read_hotels50k,
    "casia": read_casia,
    "lfw": read_lfw,
    "folder": read_folder,
    "csv": read_csv,
    "parquet": read_parquet,
    "glyphs": _read_glyphs,
}
_SUFFIXES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet"}


def kinds() -> list[str]:
    """Return the kinds of dataset that `read` knows.

    >>> kinds()
    ['cub', 'cars', 'sop', 'inshop', 'hotels50k', 'casia', 'lfw', 'folder', 'csv', 'parquet', 'glyphs']
    """
    return list(_READERS)


def describe() -> dict[str, str]:
    """Return a sentence about each of the kinds.

    >>> describe()["cub"]
    'Read CUB-200-2011. The first 100 classes are for training, the others for testing.'
    """
    return {kind: summary(reader) for kind, reader in _READERS.items()}


def read(
    path: str | Path,
    kind: str | None = None,
    *,
    classes: str | None = None,
    unlabeled: bool = False,
    **options: Any,  # noqa: ANN401
) -> Catalog:
    """Read a dataset in the layout in which it is distributed.

    Minor problems (missing files, empty classes, counts that differ from the published ones) are warnings,
    which are also stored in the catalog. Missing files keep their rows.

    Args:
        path: A folder or a table, or "glyphs" for the built-in dataset.
        kind: One of `kinds()`. By default it is recognized by the contents of the folder.
        classes: What makes a class in folders of images: `leaf` (the innermost folder, the default), `top`,
            `depth=2`, or a pattern that finds it in file names; see `firstpage.data.readers.folder`.
        unlabeled: Accept a folder of images without class folders, as one class named after the folder.
        options: Passed to the reader: `root` for csv and parquet, the options of `draw_glyphs` for glyphs.

    Raises:
        FileNotFoundError: The path does not exist, or is not this kind of dataset.
        UserError: The kind is unknown or ambiguous, or an annotation cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("wren", "auk"):
    ...         Path(root, name).mkdir()
    ...         Path(root, name, "1.jpg").touch()
    ...     print(read(root).summary())
    folder: 2 images, 2 classes
    """
    if path == "glyphs" and kind in (None, "glyphs"):
        _refuse_classes(classes, "glyphs")
        return _read_glyphs(None, **options)
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"read({str(path)!r}): no such file or folder")
    kind = kind or _recognize_kind(path)
    if kind not in _READERS:
        raise UserError(f"read({str(path)!r}, kind={kind!r}): must be one of {', '.join(kinds())}")
    if kind == "folder":
        options |= {"unlabeled": unlabeled} | ({"classes": classes} if classes else {})
    else:
        _refuse_classes(classes, kind)
    catalog = _READERS[kind](path, **options)
    catalog = replace(catalog, warnings=catalog.warnings + find_problems(catalog))
    for warning in catalog.warnings:
        warnings.warn(warning, stacklevel=2)
    return catalog


def _refuse_classes(classes: str | None, kind: str) -> None:
    if classes:
        raise UserError(f"classes={classes!r}: {kind!r} has classes of its own: only those of folders vary")


def _recognize_kind(path: Path) -> str:
    if not path.is_dir():
        if path.suffix.lower() not in _SUFFIXES:
            raise UserError(f"read({str(path)!r}): neither a folder nor a table; extract it, or set kind=")
        return _SUFFIXES[path.suffix.lower()]
    kinds = [kind for kind in MARKERS if find_root(path, kind)]
    if len(kinds) > 1:
        raise UserError(
            f"read({str(path)!r}): contains {' and '.join(kinds)}; give the folder of one, or set kind="
        )
    return kinds[0] if kinds else "folder"
