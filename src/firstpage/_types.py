"""Settings checked against the type hints of what they configure."""

import types
import typing
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Literal

from firstpage.errors import UserError

_PLAIN: dict[Any, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a string"),
    dict: (Mapping, "a table"),
    list: (list, "a list"),
}

_UNCHECKED: tuple[Any, ...] = (Callable, Any, object)


def convert(value: Any, hint: Any, name: str) -> Any:  # noqa: ANN401
    """Return a value as its type hint wants it: whole numbers for floats and lists for tuples are converted.

    The values of a dict and of a list are converted by its hint; of a `TypedDict`, those whose keys it knows.
    Hints that only their owner understands (callables, protocols) accept everything.

    Args:
        value: The value, as TOML or Python has it.
        hint: The type hint.
        name: What the setting is called, for the error.

    Raises:
        UserError: The value is of another type.

    >>> convert([1, 2], tuple[float, float], "augment.scale")
    (1.0, 2.0)
    >>> convert("many", int | None, "schedule.epochs")
    Traceback (most recent call last):
    firstpage.errors.UserError: schedule.epochs='many': must be a whole number
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _convert_union(value, arguments, name)
    if origin is Literal:
        if value not in arguments:
            raise UserError(f"{name}={_shown(value)}: choose one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{name}={_shown(value)}: must be a list")
        if arguments[-1] is not Ellipsis and len(arguments) != len(value):
            raise UserError(f"{name}={_shown(value)}: needs {len(arguments)} numbers")
        return tuple(convert(part, arguments[0], name) for part in value)
    plain = dict if typing.is_typeddict(hint) else origin or hint
    if plain in _PLAIN:
        kind, words = _PLAIN[plain]
        if not isinstance(value, kind) or (isinstance(value, bool) and plain is not bool):
            raise UserError(f"{name}={_shown(value)}: must be {words}")
        if isinstance(value, Integral) and not -(2**63) <= int(value) < 2**63:
            raise UserError(f"{name}={_shown(value)}: must fit into 64 bits")
        if plain is list and arguments:
            return [convert(part, arguments[0], name) for part in value]  # type: ignore[attr-defined]
        if isinstance(value, Mapping):
            hints = typing.get_type_hints(hint) if typing.is_typeddict(hint) else {}
            rest = arguments[1] if arguments else Any
            return {key: convert(part, hints.get(key, rest), f"{name}.{key}") for key, part in value.items()}
        return float(value) if plain is float else value  # type: ignore[arg-type]
    unchecked = plain in _UNCHECKED or getattr(plain, "_is_protocol", False)
    if isinstance(plain, type) and not unchecked and not isinstance(value, plain):
        raise UserError(f"{name}={_shown(value)}: must be a {plain.__name__}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _convert_union(value: Any, options: tuple[Any, ...], name: str) -> Any:  # noqa: ANN401
    if value is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    errors = []
    for option in options:
        try:
            return convert(value, option, name)
        except UserError as error:
            errors.append(error)
    raise errors[0]


def hints_of(function: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the type hints of a function or of a class's constructor; none if they cannot be resolved.

    >>> hints_of(str.join)
    {}
    """
    try:
        return typing.get_type_hints(function.__init__ if isinstance(function, type) else function)  # type: ignore[misc]
    except (NameError, TypeError, AttributeError):  # names imported for type checkers only
        return {}
