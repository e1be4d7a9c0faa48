"""Mining as a product: a positive strategy times a negative strategy."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from torch import Generator

from firstpage.errors import UserError
from firstpage.mining.mined import Mined, Strategy
from firstpage.mining.negatives import NEGATIVES, NegativeStrategy, distance_weighted, semihard
from firstpage.mining.positives import POSITIVES, PositiveStrategy
from firstpage.pairs import Pairs

T = TypeVar("T")
Named = str | Mapping[str, object]
"""A strategy by its name, or as a table with its name and settings, as a recipe has it."""
_WITH_SETTINGS: dict[str, Callable[..., Any]] = {"semihard": semihard, "distance_weighted": distance_weighted}


def mine(
    pairs: Pairs,
    positives: str | PositiveStrategy = "all",
    negatives: str | NegativeStrategy = "all",
    *,
    generator: Generator | None = None,
) -> Mined:
    """Choose positives and negatives for each query of `pairs`.

    Args:
        pairs: who is compared with whom.
        positives: `all`, `easy`, `hard` or `random`.
        negatives: `all`, `hard`, `semihard`, `uniform` or `distance_weighted`, or a strategy with settings
            of its own such as `mining.distance_weighted(temperature=4)`.
        generator: for the strategies that draw lots; the same generator state gives the same choice.

    >>> import torch
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    >>> mine(pairs, "easy", "hard").triplets()
    (tensor([0, 1]), tensor([1, 0]), tensor([2, 2]))
    """
    return product(positives, negatives)(pairs, generator)


def product(positives: str | PositiveStrategy, negatives: Named | NegativeStrategy) -> Strategy:
    """The strategy that chooses `positives`, then `negatives` for them, by name or as functions.

    In a recipe, a strategy with settings is a table: `negatives = { name = "semihard", beyond = 0.2 }`.

    >>> _ = product("all", {"name": "distance_weighted", "temperature": 4.0})
    >>> product("hardest", "all")
    Traceback (most recent call last):
    firstpage.errors.UserError: positives='hardest': choose one of all, easy, hard, random
    """
    return partial(
        _product,
        choose_positives=_named("positives", positives, POSITIVES),
        choose_negatives=_named("negatives", negatives, NEGATIVES),
    )


def _named(argument: str, value: Named | T, known: dict[str, T]) -> T:
    if callable(value):
        return value
    if isinstance(value, Mapping) and value.get("name") in _WITH_SETTINGS and argument == "negatives":
        settings = {key: setting for key, setting in value.items() if key != "name"}
        try:
            return cast(T, _WITH_SETTINGS[str(value["name"])](**settings))
        except TypeError as error:  # an unknown setting, or one that is not a number
            raise UserError(f"{argument}={dict(value)}: {error}") from None
    if not isinstance(value, str) or value not in known:
        raise UserError(f"{argument}={value!r}: choose one of {', '.join(known)}")
    return known[value]


def _product(
    pairs: Pairs,
    generator: Generator | None,
    *,
    choose_positives: PositiveStrategy,
    choose_negatives: NegativeStrategy,
) -> Mined:
    positives, positive_mask = choose_positives(pairs, generator)
    negatives, negative_mask, paired = choose_negatives(pairs, positives, positive_mask, generator)
    return Mined(positives, positive_mask, negatives, negative_mask, paired)
