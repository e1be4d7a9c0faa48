"""A table of methods as a TOML file: what all rows share, and what each of them changes.

The tables of the papers are in `papers/`, each a table by its name. A file looks like this:

title = "Sampling Wisely, table 1"
metrics = ["R@1", "R@2", "R@4", "R@8"]

[recipe]                     # sections of a recipe that all rows share
schedule = { epochs = 20 }

[[row]]
name = "Margin, distance weighted"
paper = { "R@1" = 63.6 }     # the paper's own figures
differs = "BN-Inception"     # what was different there
loss = { name = "margin" }   # and other sections of a recipe

A section `[tune]` has what `--tune` searches: see `spaces.py`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from firstpage._reading import read_toml
from firstpage._spelling import suggest
from firstpage._types import convert
from firstpage.compare.spaces import Space
from firstpage.errors import UserError
from firstpage.recipes.recipe import Recipe

METRICS = ("R@1", "P@5", "P@10", "MAP@R")
_ROW = ("name", "paper", "differs")
_TABLE = ("title", "about", "metrics", "protocols", "tune", "recipe", "row")
_PAPERS = Path(__file__).parent / "papers"


def names() -> list[str]:
    """Return the names of the tables that come with the package.

    >>> "sampling-wisely-1-cub" in names()
    True
    """
    return sorted(path.stem for path in _PAPERS.glob("*.toml"))


def describe() -> dict[str, str]:
    """Return a sentence about each of the tables, the first comment of its file.

    >>> describe()["easy-positive-3"]
    'Easy Positive, table 3: Hotels-50K, ResNet-50.'
    """
    texts = {name: (_PAPERS / f"{name}.toml").read_text(encoding="utf-8") for name in names()}
    return {name: text.partition("\n")[0].lstrip("# ") for name, text in texts.items()}


def find(name: str) -> "Table":
    """Return the table with that name or in that file.

    >>> find("ranked-list-1-cub").rows[0].name
    'Untrained'
    >>> find("ranked-list-1-cbu")
    Traceback (most recent call last):
    FileNotFoundError: 'ranked-list-1-cbu': no such table; did you mean 'ranked-list-1-cub'? firstpage ...
    """
    if name in names():
        return Table.read(_PAPERS / f"{name}.toml")
    if Path(name).is_file():
        return Table.read(name)
    raise FileNotFoundError(
        f"{name!r}: no such table; {suggest(name, names())}firstpage list tables names all that there are"
    )


@dataclass(frozen=True)
class Row:
    """A method of a table.

    Args:
        name: What it is called.
        recipe: How it is trained; seed and protocol are replaced.
        paper: Figures of the paper, by metric.
        differs: What was different in the paper.
        variant: Of the method, a part of file names: `tuned`, or `trial-3`.

    >>> Row("Margin, distance weighted", Recipe()).key
    'margin-distance-weighted'
    """

    name: str
    recipe: Recipe
    paper: dict[str, float] = field(default_factory=dict)
    differs: str = ""
    variant: str = ""

    @property
    def key(self) -> str:
        """The name as a part of file names."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.name} {self.variant}".lower()).strip("-")

    @property
    def is_trial(self) -> bool:
        """Whether it is a trial of `--tune`, which sees no test image."""
        return self.variant.startswith("trial-")


@dataclass(frozen=True)
class Table:
    """A table of methods.

    Args:
        title: Of the table.
        rows: The methods.
        metrics: The columns.
        about: A sentence about it.
        protocols: What it is measured by unless asked otherwise: `paper`, `fair` or both.
        tune: What `--tune` searches.

    >>> table = Table.of({"title": "Two", "row": [{"name": "RLL", "loss": {"name": "rll"}}]})
    >>> table.rows[0].recipe.loss
    {'name': 'rll'}
    """

    title: str
    rows: tuple[Row, ...]
    metrics: tuple[str, ...] = METRICS
    about: str = ""
    protocols: tuple[str, ...] = ("paper",)
    tune: Space = field(default_factory=lambda: Space.of({}))

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Build a table from nested tables, as TOML gives them.

        Raises:
            UserError: A key is unknown, a value is of the wrong type, or two rows have one name.

        >>> Table.of({"title": "Two", "row": [{"name": "RLL", "los": {}}]})
        Traceback (most recent call last):
        firstpage.errors.UserError: row 'RLL': los: no such setting; did you mean 'loss'? it has model, ...
        """
        for key in table:
            if key not in _TABLE:
                raise UserError(f"{key}: no such key; a table has {', '.join(_TABLE)}")
        title = convert(table.get("title", ""), str, "title")
        about = convert(table.get("about", ""), str, "about")
        metrics = convert(table.get("metrics", list(METRICS)), list[str], "metrics")
        protocols = convert(table.get("protocols", ["paper"]), list[str], "protocols")
        shared, given, tune = table.get("recipe", {}), table.get("row", []), table.get("tune", {})
        tables = isinstance(shared, Mapping) and isinstance(tune, Mapping)
        if not tables or not isinstance(given, list) or not given:
            raise UserError(
                "recipe and tune must be tables, and there must be a [[row]]: see firstpage.compare"
            )
        rows = tuple(_read_row(row, shared, number) for number, row in enumerate(given, start=1))
        keys = [row.key for row in rows]
        for row in rows:
            if not row.key or keys.count(row.key) > 1:
                raise UserError(f"row {row.name!r}: names must be different, also without signs: rename it")
        return cls(title, rows, tuple(metrics), about, tuple(protocols), Space.of(tune))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a table from a TOML file.

        Raises:
            FileNotFoundError: There is no such file.
            UserError: It is not valid.

        >>> Table.read("nowhere.toml")
        Traceback (most recent call last):
        FileNotFoundError: nowhere.toml: no such table
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path}: no such table")
        try:
            return cls.of(read_toml(path))
        except UserError as error:
            message = str(error)
            raise UserError(message if message.startswith(str(path)) else f"{path}: {message}") from None

    def only(self, names: Sequence[str]) -> Self:
        """Return the table with the rows of these names alone.

        Raises:
            UserError: There is no such row.

        >>> table = Table.of({"title": "Two", "row": [{"name": "RLL"}, {"name": "Margin"}]})
        >>> [row.name for row in table.only(["Margin"]).rows]
        ['Margin']
        >>> table.only(["Margins"])
        Traceback (most recent call last):
        firstpage.errors.UserError: 'Margins': no such row; did you mean 'Margin'? the table has 'RLL', ...
        """
        known = [row.name for row in self.rows]
        for name in names:
            if name not in known:
                rows = ", ".join(map(repr, known))
                raise UserError(f"{name!r}: no such row; {suggest(name, known)}the table has {rows}")
        return replace(self, rows=tuple(row for row in self.rows if row.name in names))

    def changed(self, changes: Sequence[str]) -> Self:
        """Return the table with `section.key=value` applied to all rows.

        An untrained network stays that, and with `model.dim` learners keep their shares of the dimensions.

        >>> table = Table.of({"title": "Two", "row": [{"name": "Untrained", "schedule": {"epochs": 0}}]})
        >>> changed = table.changed(["schedule.epochs=5", "model.dim=64"]).rows[0].recipe
        >>> changed.schedule.epochs, changed.model.dim
        (0, 64)
        """
        rows, parted = [], [change.partition("=") for change in changes]
        for row in self.rows:
            fixed = [] if row.recipe.schedule.epochs else ["schedule.epochs=0"]
            dims = [value.strip() for name, _, value in parted if name.strip() == "model.dim"]
            if row.recipe.model.learners and dims and dims[-1].isascii() and dims[-1].isdigit():
                fixed.append(f"model.learners={_scale(row.recipe.model.learners, int(dims[-1]))}")
            rows.append(replace(row, recipe=row.recipe.changed([*changes, *fixed])))
        return replace(self, rows=tuple(rows))


def _scale(learners: Sequence[int], dim: int) -> list[int]:
    """Return learners of that many dimensions in all, with the same shares.

    >>> _scale([96, 160, 256], 64), _scale([170, 171, 171], 64)
    ([12, 20, 32], [21, 22, 21])
    """
    ends = [round(dim * sum(learners[:count]) / sum(learners)) for count in range(len(learners) + 1)]
    return [end - begin for begin, end in pairwise(ends)]


def _read_row(row: object, shared: Mapping[str, Any], number: int) -> Row:
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
        raise UserError(f"row {number}: must have a name")
    name = row["name"]
    paper = row.get("paper", {})
    if not isinstance(paper, Mapping):
        raise UserError(f"row {name!r}: paper must be a table of figures, such as {{ 'R@1' = 63.6 }}")
    figures = {key: convert(value, float, f"row {name!r}: paper.{key}") for key, value in paper.items()}
    changes = {key: value for key, value in row.items() if key not in _ROW}
    sections = {item.name for item in fields(Recipe)}
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in shared.items()}
    for key, value in changes.items():
        replaced = key == "loss" and isinstance(value, Mapping) and "name" in value
        if key in sections and isinstance(value, Mapping) and not replaced:
            merged[key] = {**merged.get(key, {}), **value}
        else:
            merged[key] = value
    try:
        recipe = Recipe.of(merged)
    except UserError as error:
        raise UserError(f"row {name!r}: {error}") from None
    return Row(name, recipe, figures, convert(row.get("differs", ""), str, f"row {name!r}: differs"))
