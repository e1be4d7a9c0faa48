"""A recipe: every setting of a run as data. Read from TOML, checked, changed by `key=value`."""

import os
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Self

import tomli_w

from firstpage._reading import read_toml
from firstpage._spelling import suggest
from firstpage._types import convert
from firstpage.errors import UserError, one_line
from firstpage.recipes.settings import (
    AugmentSettings,
    BatchSettings,
    EnsembleSettings,
    MemorySettings,
    ModelSettings,
    OptimizerSettings,
    ScheduleSettings,
    TrainSettings,
)


@dataclass(frozen=True)
class Recipe:
    """Every setting of a run. `Recipe()` trains a ResNet-50 with the top-k precision loss.

    The sections are documented in `recipes.settings`. `loss` holds the name of a loss and any of its
    arguments, which `losses.create` checks.

    >>> recipe = Recipe.of({"loss": {"name": "epshn"}, "schedule": {"epochs": 3}})
    >>> recipe = recipe.changed(["loss.temperature=0.05", "model.backbone=small"])
    >>> recipe.loss, recipe.model.backbone, recipe.schedule.epochs
    ({'name': 'epshn', 'temperature': 0.05}, 'small', 3)
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    loss: dict[str, Any] = field(default_factory=lambda: {"name": "topk"})
    ensemble: EnsembleSettings = field(default_factory=EnsembleSettings)
    batch: BatchSettings = field(default_factory=BatchSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    train: TrainSettings = field(default_factory=TrainSettings)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Build a recipe from nested tables; missing settings have their defaults.

        Raises:
            UserError: An unknown setting, with the most similar known one, or a value of the wrong type.

        >>> Recipe.of({"optimizer": {"learning_rat": 1}})
        Traceback (most recent call last):
        firstpage.errors.UserError: optimizer.learning_rat: no such setting; it has name, lr, head, ...
        """
        built: Self = build_settings(cls, table, "")
        return built

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a recipe from a TOML file. Missing settings have their defaults; an empty file is refused.

        Raises:
            FileNotFoundError: There is no such file.
            UserError: It is not valid; the message names the file and the setting.

        >>> Recipe.read("nowhere.toml")
        Traceback (most recent call last):
        FileNotFoundError: nowhere.toml: no such recipe
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path}: no such recipe")
        table = read_toml(path)
        try:
            return cls.of(table)
        except UserError as error:
            raise UserError(f"{path}: {one_line(error)}") from None

    def changed(self, changes: Sequence[str]) -> Self:
        """Return the recipe with `section.key=value` applied; values are written as in TOML, quotes optional.

        >>> Recipe().changed(["schedule.epochs=2", "model.pooling=avg+max"]).model.pooling
        'avg+max'
        """
        table = asdict(self)
        for change in changes:
            name, equals, text = change.partition("=")
            keys = name.strip().split(".")
            if not equals or len(keys) < 2:
                raise UserError(f"--set {change!r}: write section.key=value, such as loss.k=3")
            section = table
            for key in keys[:-1]:
                section = section.setdefault(key, {})
                if not isinstance(section, dict):
                    raise UserError(f"--set {change!r}: {key} holds a value, not a table")
            value = _parse(text.strip())
            if keys == ["loss", "name"] and table["loss"].get("name") != value:
                table["loss"] = section = {}  # another loss has other settings
            section[keys[-1]] = value
        return type(self).of(table)

    def toml(self) -> str:
        """Return the recipe as TOML.

        >>> Recipe.of(tomllib.loads(Recipe().toml())) == Recipe()
        True
        """
        return tomli_w.dumps(_without_none(asdict(self)))


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without its None values, which TOML does not have."""
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


def build_settings(kind: Any, table: Mapping[str, Any], prefix: str) -> Any:  # noqa: ANN401
    """Create a dataclass of settings from a table, after checking its keys and the types of its values.

    Args:
        kind: A dataclass of settings; its fields may be such dataclasses themselves.
        table: Values by key. Missing keys have their defaults.
        prefix: Prefix of the keys in messages, such as `model.`.

    >>> build_settings(ModelSettings, {"dim": "64"}, "model.")
    Traceback (most recent call last):
    firstpage.errors.UserError: model.dim='64': must be a whole number
    """
    hints = typing.get_type_hints(kind)
    known = [item.name for item in fields(kind)]
    given = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if key not in known:
            raise UserError(
                f"{name}: no such setting; {suggest(key, known, prefix)}it has {', '.join(known)}"
            )
        if not is_dataclass(hints[key]):
            given[key] = convert(value, hints[key], name)
        elif isinstance(value, Mapping):
            given[key] = build_settings(hints[key], value, f"{name}.")
        else:
            raise UserError(f"{name}={value!r}: must be a table of settings, [{name}]")
    return kind(**given)


def _parse(text: str) -> Any:  # noqa: ANN401
    """Return a value as TOML reads it; what TOML cannot read is a string without quotes."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError):
        return text
