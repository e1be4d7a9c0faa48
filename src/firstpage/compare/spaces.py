"""The space that `--tune` searches: the `[tune]` of a table.

[tune]
optimizer.lr = { low = 1e-5, high = 1e-4 }   # a range, searched evenly in its logarithm
optimizer.head = [1, 5, 10]                  # some values
schedule.epochs = 10                         # one value: of all trials, and not of the trainings after them
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from firstpage.errors import UserError

# The space of a table without one. A multiple for the loss does nothing where a loss has no parameters.
SPACE: dict[str, Any] = {
    "optimizer.lr": {"low": 3e-6, "high": 3e-4},
    "optimizer.head": {"low": 1.0, "high": 30.0},
    "optimizer.loss": {"low": 1.0, "high": 1000.0},
}
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a table of settings by their full names; a range stays one value.

    >>> flatten({"optimizer": {"lr": {"low": 1e-5, "high": 1e-4}}, "loss.k": [1, 3]})
    {'optimizer.lr': {'low': 1e-05, 'high': 0.0001}, 'loss.k': [1, 3]}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and not {"low", "high"} & value.keys():
            found |= flatten(value, f"{name}.")
        else:
            found[name] = dict(value) if isinstance(value, Mapping) else value
    return found


@dataclass(frozen=True)
class Space:
    """What is searched.

    Args:
        searched: Settings and their values: a list, or a table with `low` and `high`.
        fixed: Settings that all trials share.

    >>> lr = {"low": 1e-6, "high": 1e-4}
    >>> Space.of({"optimizer.lr": lr, "loss.k": [1, 3], "schedule.epochs": 5}).settings(3)
    [{'optimizer.lr': 1e-05, 'loss.k': 1}, {'optimizer.lr': 3.16e-06, 'loss.k': 3}, ...]
    >>> len(Space.of({"loss.k": [1, 3]}).settings(5))  # there are no more
    2
    """

    searched: dict[str, Any]
    fixed: dict[str, Any]

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Space":
        """Build a space from the `[tune]` of a table; the default one if that is empty.

        Raises:
            UserError: A range or a list is not one.

        >>> Space.of({"optimizer.lr": {"low": 0, "high": 1}})
        Traceback (most recent call last):
        firstpage.errors.UserError: tune: optimizer.lr: write { low = 1e-5, high = 1e-4 }, both above 0
        """
        flat = flatten(table)
        searched = {name: value for name, value in flat.items() if isinstance(value, list | dict)}
        fixed = {name: value for name, value in flat.items() if name not in searched}
        for name, value in searched.items():
            if isinstance(value, dict):
                numbers = all(isinstance(end, int | float) for end in value.values())
                whole = numbers and value.keys() == {"low", "high"}
                if not whole or not 0 < value["low"] < value["high"] < math.inf:
                    raise UserError(f"tune: {name}: write {{ low = 1e-5, high = 1e-4 }}, both above 0")
            elif not value or any(one in value[:number] for number, one in enumerate(value)):
                raise UserError(f"tune: {name}={value!r}: give a list of different values")
        if len(searched) > len(_PRIMES):
            raise UserError(f"tune: {len(searched)} settings: search at most {len(_PRIMES)}")
        return cls(searched or dict(SPACE), fixed)

    def settings(self, count: int) -> list[dict[str, Any]]:
        """Return the settings of the first trials, spread evenly (Halton's sequence).

        There are fewer if there are no more. With a greater count, the first ones stay as they are.
        """
        lists = [value for value in self.searched.values() if isinstance(value, list)]
        if len(lists) == len(self.searched):
            count = min(count, math.prod(map(len, lists)))
        found: list[dict[str, Any]] = []
        for point in _halton(len(self.searched)):
            if len(found) == count:
                break
            values = [_at(value, share) for value, share in zip(self.searched.values(), point, strict=True)]
            settings = dict(zip(self.searched, values, strict=True))
            if settings not in found:
                found.append(settings)
        return found

    def describe(self) -> str:
        """Return the space in words.

        >>> Space.of({"loss.k": [1, 3], "schedule.epochs": 5}).describe()
        'loss.k 1 or 3; in all trials schedule.epochs=5'
        """
        parts = [
            f"{name} {value['low']:g} to {value['high']:g}"
            if isinstance(value, dict)
            else f"{name} {' or '.join(map(str, value))}"
            for name, value in self.searched.items()
        ]
        shared = f"; in all trials {describe_settings(self.fixed)}" if self.fixed else ""
        return ", ".join(parts) + shared


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Return settings in a line.

    >>> describe_settings({"optimizer.lr": 3.16e-05, "loss.k": 3})
    'optimizer.lr=3.16e-05, loss.k=3'
    """
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _halton(dimensions: int) -> Iterator[list[float]]:
    """Yield points of Halton's sequence in the unit cube, each coordinate by another prime."""
    number = 1
    while True:
        point = []
        for prime in _PRIMES[:dimensions]:
            share, place, rest = 0.0, 1.0, number
            while rest:
                rest, digit = divmod(rest, prime)
                place /= prime
                share += digit * place
            point.append(share)
        yield point
        number += 1


def _at(values: Any, share: float) -> Any:  # noqa: ANN401
    """Return the value at a share of a list or a range, rounded to three digits."""
    if isinstance(values, list):
        return values[int(share * len(values))]
    low, high = values["low"], values["high"]
    return float(f"{low * (high / low) ** share:.3g}")
