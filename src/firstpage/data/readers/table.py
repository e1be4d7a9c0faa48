"""Tables of images: csv and parquet."""

import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from itertools import chain
from math import isnan, nan
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np

from firstpage._spelling import suggest
from firstpage.data.catalog import Catalog
from firstpage.data.readers.layout import (
    encode_names,
    normalize_split,
    open_table,
    read_csv_rows,
    rows_by_name,
)
from firstpage.errors import UserError

CORNERS = ("x0", "y0", "x1", "y1")
COLUMNS = {"path", "label", "split", "box", "group", *CORNERS}
SAMPLE = "path,label,split,group,x0,y0,x1,y1"  # only the first two are needed
OTHER_NAMES = {
    "path": ("file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img", "photo"),
    "label": ("labels", "class", "class_name", "category", "identity", "target", "product", "id"),
    "split": ("splits", "set", "subset", "partition"),
    "group": ("groups", "superclass", "super_class", "supercategory"),
    "box": ("bbox", "boxes", "bounding_box"),
}
MAX_FURTHER = 64  # further columns kept
MAX_NAMED = 8  # of them in a note
MISSING = ("nan", "NaN", "<NA>")  # as numpy and pandas write an empty cell


def read_csv(path: Path, *, root: str | Path | None = None) -> Catalog:
    r"""Read a csv file, separated by commas, semicolons or tabs, with columns `path` and `label`.

    Optional columns: `split`; a box as `x0`, `y0`, `x1`, `y1` or as one `box` of four numbers; `group`. Boxes
    and splits may be empty. The case of splits and blanks around names are ignored. Paths may be absolute.
    Any further columns, such as `camera`, are kept as text in `Catalog.columns`.

    Args:
        path: The file.
        root: The folder that paths are relative to. Defaults to the folder of the file.

    Raises:
        UserError: A column is missing, or a row cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "birds.csv")
    ...     _ = file.write_text("path,label,split,box\n1.jpg,wren,train,0 0 20 10\n2.jpg,auk,test,\n")
    ...     catalog = read_csv(file)
    >>> catalog.classes, catalog.labels.tolist(), catalog.boxes.tolist()
    (['auk', 'wren'], [1, 0], [[0.0, 0.0, 20.0, 10.0], [nan, nan, nan, nan]])
    """
    rows = read_csv_rows(path)
    _, header = next(rows, (0, []))
    return _read_rows("csv", path, root, header, rows)


def read_parquet(path: Path, *, root: str | Path | None = None) -> Catalog:
    """Read a parquet file with the columns of `read_csv`. A `box` may be a list. Requires pyarrow.

    Args:
        path: The file.
        root: The folder that paths are relative to. Defaults to the folder of the file.

    Raises:
        UserError: pyarrow is not installed, a column is missing, or a row cannot be read.

    >>> import tempfile, pyarrow, pyarrow.parquet
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "birds.parquet")
    ...     pyarrow.parquet.write_table(pyarrow.table({"path": ["1.jpg"], "label": ["wren"]}), file)
    ...     read_parquet(file).classes
    ['wren']
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UserError("read(kind='parquet') needs pyarrow: pip install firstpage[parquet]") from None
    with open_table(path) as opened:
        try:
            file = ParquetFile(opened)
            fields = file.schema_arrow
            plain = [field.name for field in fields if _is_plain(field.type)]  # names may be given twice
            further = [name for name in plain if name.strip().lower() not in COLUMNS][:MAX_FURTHER]
            header = [name for name in fields.names if name.strip().lower() in COLUMNS or name in further]
            batches = (
                zip(*(column.to_pylist() for column in batch.columns), strict=True)
                for batch in file.iter_batches(columns=header)
            )
            rows = enumerate(chain.from_iterable(batches), 1)
            return _read_rows("parquet", path, root, header, rows)
        except UserError:
            raise
        except (ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path}: not a parquet file, or a damaged one ({reason})") from None


def _read_rows(
    kind: str,
    file: Path,
    root: str | Path | None,
    header: Sequence[str],
    rows: Iterable[tuple[int, Sequence[Any]]],
) -> Catalog:
    """Return the catalog of a table, given by its header and numbered rows."""
    column = {name.strip().lower(): position for position, name in enumerate(header)}
    has_corners = any(corner in column for corner in CORNERS)
    for name in ("path", "label", *(CORNERS if has_corners else ())):
        if name not in column:
            names = " ".join(", ".join(column).split())  # a quote without an end takes in the lines below
            meant = next((other for other in OTHER_NAMES.get(name, ()) if other in column), None)
            guess = f"did you mean {meant!r}? " if meant else suggest(name, column.keys() - COLUMNS)
            raise UserError(
                f"{file}: no column {name!r}; its columns are {names or 'none'}; "
                f"{guess}a table has columns such as {SAMPLE}"
            )
    if len(column) < len(header):
        found = Counter(name.strip().lower() for name in header)
        twice = [name for name in sorted(COLUMNS) if found[name] > 1]
        if twice:
            raise UserError(
                f"{file}: {found[twice[0]]} columns are named {twice[0]!r}: rename or remove all but one"
            )
    path_at, label_at, split_at = column["path"], column["label"], column.get("split")
    group_at, box_at = column.get("group"), column.get("box")
    corners_at = [column[corner] for corner in CORNERS] if has_corners else []
    further = [name for name in column if name and name not in COLUMNS]
    kept: dict[str, list[str]] = {name: [] for name in further[:MAX_FURTHER]}
    kept_at = [(values, column[name]) for name, values in kept.items()]

    paths: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    groups: list[str] = []
    boxes = array("f")
    for row_number, row in rows:
        try:
            if len(row) != len(header):
                raise UserError(f"expected {len(header)} cells, got {len(row)}")
            paths.append(_require_text(row[path_at], "path"))
            # intern: a name that occurs in many rows is stored once
            labels.append(intern(_require_text(row[label_at], "label").strip()))
            if split_at is not None:
                splits.append(intern(normalize_split(_text(row[split_at]).strip())))
            if group_at is not None:
                groups.append(intern(_require_text(row[group_at], "group").strip()))
            if has_corners:
                boxes.extend(_parse_box([row[position] for position in corners_at]))
            elif box_at is not None:
                boxes.extend(_parse_box(row[box_at]))
            for values, position in kept_at:
                values.append(intern(_text(row[position]).strip()))
        except ValueError as error:
            raise UserError(f"{file}: row {row_number}: {error}") from None
    if not paths:
        raise UserError(f"{file}: has no rows after its header")
    codes, classes = encode_names(labels)
    group_codes, group_names = encode_names(groups)
    return Catalog(
        kind,
        file.parent if root is None else Path(root),
        paths,
        codes,
        classes,
        rows_by_name(splits),
        boxes=np.array(boxes, np.float32).reshape(-1, 4) if boxes else None,
        groups=group_codes if groups else None,
        group_names=group_names,
        file=file.name,
        columns=kept,
        notes=_further_notes(further, column.keys()),
    )


def _further_notes(further: Sequence[str], header: Collection[str]) -> list[str]:
    """Return a line with the further columns, and one for each that may be a known one under another name."""
    if not further:
        return []
    few = ", ".join(further[:MAX_NAMED])
    rest = f" and {len(further) - MAX_NAMED} more" if len(further) > MAX_NAMED else ""
    dropped = f"; only the first {MAX_FURTHER} are kept" if len(further) > MAX_FURTHER else ""
    notes = [f"further columns: {few}{rest}{dropped}"]
    for name in further:
        for known in ("split", "group", "box"):
            close = name in OTHER_NAMES[known] or get_close_matches(name, [known], cutoff=0.8)
            if close and known not in header:
                notes.append(f"column {name!r} has no meaning of its own: did you mean {known!r}?")
    return notes[: 1 + MAX_NAMED]


def _is_plain(kind: Any) -> bool:  # noqa: ANN401
    """Return whether a parquet column holds short values: neither lists nor bytes, such as whole images."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return not (types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind))


def _text(cell: object) -> str:
    """Return a cell as text, "" if its value is missing."""
    text = "" if cell is None else str(cell)
    return "" if text.strip() in MISSING else text


def _require_text(cell: object, name: str) -> str:
    text = _text(cell)
    if not text.strip():
        raise UserError(f"empty {name}: fill it in, or remove the row")
    return text


def _parse_box(cell: object) -> tuple[float, float, float, float]:
    """Parse a box from four cells, a list, or text such as "0 0 20 10" or "[0, 0, 20, 10]"."""
    cells: Any = re.split(r"[\s,]+", cell.strip(" \t[]()")) if isinstance(cell, str) else cell
    try:
        if cells is None or all(value in (None, "") for value in cells):
            return nan, nan, nan, nan
        x0, y0, x1, y1 = map(float, cells)
    except (TypeError, ValueError):
        raise UserError(f"expected a box of four numbers x0 y0 x1 y1, got {cell!r}") from None
    if not (x0 < x1 and y0 < y1) and not all(map(isnan, (x0, y0, x1, y1))):
        raise UserError(f"expected a box with x0 < x1 and y0 < y1, got {cell!r}")
    return x0, y0, x1, y1
