"""Tables of one's own: csv and parquet."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from math import isnan, nan
from pathlib import Path
from sys import intern
from typing import Any

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.readers.layout import encode_names, normalize_split, read_csv_rows, rows_by_name
from firstpage.errors import UserError

CORNERS = ("x0", "y0", "x1", "y1")
NOTHING = (None, "")


def read_csv(path: Path, *, root: str | Path | None = None) -> Catalog:
    r"""Reads a csv file (also with semicolons or tabs) whose header names `path` and `label`.

    Further columns that are read: `split`; a box as `x0`, `y0`, `x1`, `y1` or as one `box` of four numbers;
    `group`. An empty box or split is none; `TRAIN` is `train`; blanks around names do not count. Paths may be
    absolute.

    Args:
        path: The file.
        root: The folder that paths are relative to; that of the file, if not given.

    Raises:
        UserError: A column is missing, or a row cannot be read; it is named.

    Example:
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
    return _catalog("csv", path, root, header, rows)


def read_parquet(path: Path, *, root: str | Path | None = None) -> Catalog:
    """Reads a parquet file with the columns of `csv`; a `box` may be a list. Needs pyarrow.

    Args:
        path: The file.
        root: The folder that paths are relative to; that of the file, if not given.

    Raises:
        UserError: pyarrow is not installed.
        UserError: A column is missing, or a row cannot be read; it is named.

    Example:
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
    try:
        file = ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise UserError(f"{path}: not a parquet file ({str(error).splitlines()[0]})") from None
    wanted = {"path", "label", "split", "box", "group", *CORNERS}
    header = [name for name in file.schema_arrow.names if name.strip().lower() in wanted]
    with file:
        batches = (
            zip(*batch.to_pydict().values(), strict=True) for batch in file.iter_batches(columns=header)
        )
        return _catalog("parquet", path, root, header, enumerate(chain.from_iterable(batches), 1))


def _catalog(
    kind: str,
    file: Path,
    root: str | Path | None,
    header: Sequence[str],
    rows: Iterable[tuple[int, Sequence[Any]]],
) -> Catalog:
    """The catalog of numbered rows under a header."""
    column = {name.strip().lower(): position for position, name in enumerate(header)}
    cornered = any(corner in column for corner in CORNERS)
    for name in ("path", "label", *(CORNERS if cornered else ())):
        if name not in column:
            raise UserError(f"{file}: no column {name!r}; its columns are {', '.join(column) or 'none'}")
    path_at, label_at, split_at = column["path"], column["label"], column.get("split")
    group_at, box_at = column.get("group"), column.get("box")
    corners_at = [column[corner] for corner in CORNERS] if cornered else []

    paths: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    groups: list[str] = []
    boxes = array("f")
    for row_number, row in rows:
        try:
            if len(row) != len(header):
                raise UserError(f"expected {len(header)} cells, got {len(row)}")
            paths.append(_filled(row[path_at], "path"))
            # intern: a name that stands in many rows is kept once
            labels.append(intern(_filled(row[label_at], "label").strip()))
            if split_at is not None:
                splits.append(
                    intern("" if row[split_at] is None else normalize_split(str(row[split_at]).strip()))
                )
            if group_at is not None:
                groups.append(intern(_filled(row[group_at], "group").strip()))
            if cornered:
                boxes.extend(_box([row[position] for position in corners_at]))
            elif box_at is not None:
                boxes.extend(_box(row[box_at]))
        except ValueError as error:
            raise UserError(f"{file}: row {row_number}: {error}") from None
    if not paths:
        raise UserError(f"{file}: has no rows below its header")
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
    )


def _filled(cell: object, name: str) -> str:
    text = "" if cell is None else str(cell)
    if not text.strip():
        raise UserError(f"empty {name}")
    return text


def _box(cell: object) -> tuple[float, float, float, float]:
    """Four numbers, from four cells, a list, or text such as "0 0 20 10" or "[0, 0, 20, 10]"."""
    cells: Any = re.split(r"[\s,]+", cell.strip(" \t[]()")) if isinstance(cell, str) else cell
    try:
        if cells is None or all(value in NOTHING for value in cells):
            return nan, nan, nan, nan
        x0, y0, x1, y1 = map(float, cells)
    except (TypeError, ValueError):
        raise UserError(f"expected a box of four numbers x0 y0 x1 y1, got {cell!r}") from None
    if not (x0 < x1 and y0 < y1) and not all(map(isnan, (x0, y0, x1, y1))):
        raise UserError(f"expected a box with x0 < x1 and y0 < y1, got {cell!r}")
    return x0, y0, x1, y1
