"""A recipe: all that decides a run, as data. Read from TOML, checked, changed by `key=value`."""

from __future__ import annotations

import os
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Self

from firstpage._spelling import suggest
from firstpage.errors import UserError
from firstpage.recipes.settings import (
    AugmentSettings,
    BatchSettings,
    MemorySettings,
    ModelSettings,
    OptimizerSettings,
    ScheduleSettings,
    TrainSettings,
)

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """All that decides a run. `Recipe()` trains a ResNet-50 with the top-k precision loss.

    `loss` holds the name of a loss and any of its settings; it is checked by `losses.create`.

    >>> recipe = Recipe.of({"loss": {"name": "epshn"}, "schedule": {"epochs": 3}})
    >>> recipe = recipe.changed(["loss.temperature=0.05", "model.backbone=small"])
    >>> recipe.loss, recipe.model.backbone, recipe.schedule.epochs
    ({'name': 'epshn', 'temperature': 0.05}, 'small', 3)
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    loss: dict[str, Any] = field(default_factory=lambda: {"name": "topk", "k": 1, "margin": 0.1})
    batch: BatchSettings = field(default_factory=BatchSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    train: TrainSettings = field(default_factory=TrainSettings)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """A recipe from nested tables; what they leave out keeps its default.

        Raises:
            UserError: an unknown key, with its nearest neighbor, or a value of the wrong kind.

        >>> Recipe.of({"optimizer": {"learning_rat": 1}})
        Traceback (most recent call last):
        firstpage.errors.UserError: optimizer.learning_rat: no such setting; it has name, lr, head, ...
        """
        built: Self = _build(cls, table, "")
        return built

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """A recipe from a TOML file.

        >>> Recipe.read("nowhere.toml")
        Traceback (most recent call last):
        FileNotFoundError: nowhere.toml: no such recipe
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path}: no such recipe")
        try:
            return cls.of(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except (tomllib.TOMLDecodeError, ValueError) as error:
            raise UserError(f"{path}: {error}") from None

    def changed(self, changes: Sequence[str]) -> Self:
        """The recipe with `section.key=value` applied; values are written as in TOML, quotes optional.

        >>> Recipe().changed(["schedule.epochs=2", "model.pooling=avg+max"]).model.pooling
        'avg+max'
        """
        table = asdict(self)
        for change in changes:
            name, equals, text = change.partition("=")
            keys = name.strip().split(".")
            if not equals or len(keys) < 2:
                raise UserError(f"--set {change!r}: write section.key=value, such as loss.k=3")
            place = table
            for key in keys[:-1]:
                place = place.setdefault(key, {})
                if not isinstance(place, dict):
                    raise UserError(f"--set {change!r}: {key} holds a value, not a table")
            value = _value(text.strip())
            if keys == ["loss", "name"] and table["loss"].get("name") != value:
                table["loss"] = place = {}  # another loss has other settings
            place[keys[-1]] = value
        return type(self).of(table)

    def toml(self) -> str:
        """The recipe as TOML, so that what ran can run again.

        >>> Recipe.of(tomllib.loads(Recipe().toml())) == Recipe()
        True
        """
        lines = []
        for section, table in asdict(self).items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {_toml(value)}" for key, value in table.items() if value is not None]
            lines.append("")
        return "\n".join(lines)


def _build(kind: Any, table: Mapping[str, Any], place: str) -> Any:  # noqa: ANN401
    hints = typing.get_type_hints(kind)
    known = [item.name for item in fields(kind)]
    given = {}
    for key, value in table.items():
        where = f"{place}{key}"
        if key not in known:
            raise UserError(
                f"{where}: no such setting; {suggest(key, known, place)}it has {', '.join(known)}"
            )
        if is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise UserError(f"{where}={value!r}: is a table of settings, [{where}]")
            given[key] = _build(hints[key], value, f"{where}.")
        else:
            given[key] = _fitting(value, hints[key], where)
    try:
        return kind(**given)
    except ValueError as error:
        raise UserError(f"{place}{error}" if place == "model." else str(error)) from None


def _fitting(value: Any, kind: Any, where: str) -> Any:  # noqa: ANN401
    """The value as the setting's kind, or a complaint."""
    if typing.get_origin(kind) is types.UnionType:
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        return None if value is None else _fitting(value, options[0], where)
    if typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
        inner = typing.get_args(kind)
        if inner[-1] is not Ellipsis and len(inner) != len(value):
            raise UserError(f"{where}={value!r}: needs {len(inner)} numbers")
        return tuple(_fitting(part, inner[0], where) for part in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = typing.get_origin(kind) or kind
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        word = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}.get(
            plain, "a list"
        )
        raise UserError(f"{where}={value!r}: must be {word}")
    return dict(value) if plain is dict else value


def _value(text: str) -> Any:  # noqa: ANN401
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _toml(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    return repr(value)
