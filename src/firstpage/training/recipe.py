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

from firstpage._spelling import meant
from firstpage.models.settings import ModelSettings

__all__ = [
    "AugmentSettings",
    "BatchSettings",
    "MemorySettings",
    "OptimiserSettings",
    "Recipe",
    "ScheduleSettings",
    "TrainSettings",
]


@dataclass(frozen=True)
class BatchSettings:
    """`[batch]`: what a `GroupSampler` needs, and how much of it is in a network at a time.

    Args:
        size: images of a batch, over all ranks.
        images_per_class: most images of one class in it.
        oversample: repeat images of a class that has too few.
        chunk: images that each rank's network holds at a time, so that a batch of thousands takes the memory
            of a few; 0 for all of its share. See `caching.backward`.

    >>> BatchSettings(size=180, images_per_class=3).size
    180
    """

    size: int = 128
    images_per_class: int = 4
    oversample: bool = False
    chunk: int = 0

    def __post_init__(self) -> None:
        if self.chunk < 0:
            raise ValueError(f"batch.chunk={self.chunk}: must not be negative; 0 takes the batch at once")


@dataclass(frozen=True)
class MemorySettings:
    """`[memory]`: embeddings of earlier batches as further candidates; see `memory.Memory`.

    Args:
        size: embeddings kept; 0 for none.
        start: batches to wait for before they are used.

    >>> MemorySettings(size=16_384).start
    0
    """

    size: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("start", self.start)):
            if value < 0:
                raise ValueError(f"memory.{name}={value}: must not be negative")


@dataclass(frozen=True)
class AugmentSettings:
    """`[augment]`: what happens to a training image; the crop's side is the model's.

    >>> AugmentSettings(crop="random").flip
    0.5
    """

    crop: str = "resized"
    scale: tuple[float, float] = (0.16, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class OptimiserSettings:
    """`[optimiser]`: one rate for the backbone, multiples of it for new parts.

    Args:
        name: `adamw`, `adam` or `sgd`.
        lr: rate of the backbone.
        head: the head's rate, as a multiple of it.
        loss: the rate of the loss's own parameters (β, proxies), as a multiple of it.
        weight_decay: not applied to biases, norms and the loss's parameters.
        momentum: of SGD.
        betas: of Adam.
        eps: of Adam.
        clip: greatest norm of the gradient; 0 leaves it.

    >>> OptimiserSettings(lr=1e-4).head
    10.0
    """

    name: str = "adamw"
    lr: float = 1e-5
    head: float = 10.0
    loss: float = 10.0
    weight_decay: float = 1e-4
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("adamw", "adam", "sgd"):
            raise ValueError(f"optimiser.name={self.name!r}: choose one of adamw, adam, sgd")
        if not self.lr > 0:
            raise ValueError(f"optimiser.lr={self.lr}: must be positive")


@dataclass(frozen=True)
class ScheduleSettings:
    """`[schedule]`: how long, and how the rates change.

    Args:
        epochs: passes over the training images.
        kind: `step` (times `factor` at each milestone), `cosine` (down to 0) or `constant`.
        milestones: shares of all epochs at which a step falls.
        factor: of a step.
        warmup: epochs of linear warm-up.
        head_epochs: epochs at the start in which only the head and the loss learn.

    >>> ScheduleSettings(kind="cosine").epochs
    15
    """

    epochs: int = 15
    kind: str = "step"
    milestones: tuple[float, ...] = (0.6, 0.85)
    factor: float = 0.1
    warmup: float = 0.0
    head_epochs: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("step", "cosine", "constant"):
            raise ValueError(f"schedule.kind={self.kind!r}: choose one of step, cosine, constant")
        if self.epochs < 1:
            raise ValueError(f"schedule.epochs={self.epochs}: must be at least 1")


@dataclass(frozen=True)
class TrainSettings:
    """`[train]`: everything else.

    Args:
        seed: of weights, batches, augmentation and draws.
        protocol: `paper` selects the best epoch on the test classes, as the papers did; `fair` on classes
            held out from training, and touches the test classes once, at the end.
        fold: which of the `folds` holds the classes held out (`fair`).
        folds: into how many parts the training classes are cut (`fair`).
        precision: `bf16` or `fp32`; `auto` is bf16 on a GPU.
        compile: `torch.compile` network, augmentation and loss; a minute at the start, then twice the pace.
        sync_batch_norm: let batch norms that learn take the statistics of all ranks' images.
        ema: decay of an average of the weights that is evaluated and saved; 0 for none.
        evaluate_every: epochs between evaluations.
        evaluate_steps: steps between evaluations, in place of epochs; 0 goes by epochs.
        patience: evaluations without a better one before stopping early; 0 never stops.
        checkpoint_every: minutes between checkpoints, from which a killed run goes on; 0 for every step.

    >>> TrainSettings(protocol="fair").folds
    5
    """

    seed: int = 0
    protocol: str = "paper"
    fold: int = 0
    folds: int = 5
    precision: str = "auto"
    compile: bool = False
    sync_batch_norm: bool = False
    ema: float = 0.0
    evaluate_every: int = 1
    evaluate_steps: int = 0
    patience: int = 0
    checkpoint_every: float = 5.0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("protocol", self.protocol, ("paper", "fair")),
            ("precision", self.precision, ("auto", "bf16", "fp32")),
        ):
            if value not in known:
                raise ValueError(f"train.{name}={value!r}: choose one of {', '.join(known)}")
        if not 0 <= self.fold < self.folds:
            raise ValueError(f"train.fold={self.fold}: must lie in 0..{self.folds - 1}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"train.ema={self.ema}: must lie in [0, 1), such as 0.999")
        if self.evaluate_every < 1:
            raise ValueError(f"train.evaluate_every={self.evaluate_every}: must be at least 1")
        if self.evaluate_steps < 0:
            raise ValueError(f"train.evaluate_steps={self.evaluate_steps}: must not be negative")
        if not self.checkpoint_every >= 0:
            raise ValueError(f"train.checkpoint_every={self.checkpoint_every}: minutes, 0 or more")


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
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    train: TrainSettings = field(default_factory=TrainSettings)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """A recipe from nested tables; what they leave out keeps its default.

        Raises:
            ValueError: an unknown key, with its nearest neighbour, or a value of the wrong kind.

        >>> Recipe.of({"optimiser": {"learning_rat": 1}})
        Traceback (most recent call last):
        ValueError: optimiser.learning_rat: no such setting; it has name, lr, head, loss, weight_decay, ...
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
            raise ValueError(f"{path}: {error}") from None

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
                raise ValueError(f"--set {change!r}: write section.key=value, such as loss.k=3")
            place = table
            for key in keys[:-1]:
                place = place.setdefault(key, {})
                if not isinstance(place, dict):
                    raise ValueError(f"--set {change!r}: {key} holds a value, not a table")
            if keys == ["loss", "name"] and table["loss"].get("name") != text:
                table["loss"] = place = {}  # another loss has other settings
            place[keys[-1]] = _value(text.strip())
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
            raise ValueError(f"{where}: no such setting; {meant(key, known, place)}it has {', '.join(known)}")
        if is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise ValueError(f"{where}={value!r}: is a table of settings, [{where}]")
            given[key] = _build(hints[key], value, f"{where}.")
        else:
            given[key] = _fitting(value, hints[key], where)
    try:
        return kind(**given)
    except ValueError as error:
        raise ValueError(f"{place}{error}" if place == "model." else str(error)) from None


def _fitting(value: Any, kind: Any, where: str) -> Any:  # noqa: ANN401
    """The value as the setting's kind, or a complaint."""
    if typing.get_origin(kind) is types.UnionType:
        options = [option for option in typing.get_args(kind) if option is not type(None)]
        return None if value is None else _fitting(value, options[0], where)
    if typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
        inner = typing.get_args(kind)
        if inner[-1] is not Ellipsis and len(inner) != len(value):
            raise ValueError(f"{where}={value!r}: needs {len(inner)} numbers")
        return tuple(_fitting(part, inner[0], where) for part in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = typing.get_origin(kind) or kind
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        word = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}.get(
            plain, "a list"
        )
        raise ValueError(f"{where}={value!r}: must be {word}")
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
