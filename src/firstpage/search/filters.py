"""Filters such as `label == 'mug' and price < 20`, on the labels and columns of an index."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from firstpage._text import shorten
from firstpage.errors import UserError

MAX_LENGTH, MAX_DEPTH = 2000, 20
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_HINT = "write such as label == 'mug', price < 20, label in ['mug', 'cup'], joined by and, or, not"


def matching_rows(where: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return which rows a filter accepts: bool [N].

    A column is compared as numbers if the other side is a number; what is no number matches nothing then.

    Args:
        where: The filter.
        columns: Values of each column, as strings: [N].

    Raises:
        UserError: It is not valid, or names a column that there is not.

    >>> columns = {"label": np.array(["mug", "cup"]), "price": np.array(["8", "30"])}
    >>> matching_rows("label == 'mug' or price >= 20.5", columns)
    array([ True,  True])
    >>> matching_rows("color == 'red'", columns)
    Traceback (most recent call last):
    firstpage.errors.UserError: where: no column 'color'; there are label, price
    """
    if len(where) > MAX_LENGTH:
        raise UserError(f"where: longer than {MAX_LENGTH} characters")
    try:
        return _mask(ast.parse(where, mode="eval").body, _Columns(columns), 0)
    except UserError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"where: cannot read {shorten(where, 200)!r}; {_HINT}") from None


class _Columns:
    """The values of columns, as texts and as numbers; each column is read as numbers once."""

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self._texts, self._numbers = columns, dict[str, np.ndarray]()

    def texts(self, name: str) -> np.ndarray:
        if name not in self._texts:
            raise UserError(f"where: no column {name!r}; there are {', '.join(self._texts)}")
        return self._texts[name]

    def numbers(self, name: str) -> np.ndarray:
        if name not in self._numbers:
            self._numbers[name] = np.array([_number(text) for text in self._texts[name]], np.float64)
        return self._numbers[name]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _mask(node: ast.expr, columns: _Columns, depth: int) -> np.ndarray:
    if depth > MAX_DEPTH:
        raise UserError(f"where: nested deeper than {MAX_DEPTH} levels")
    if isinstance(node, ast.BoolOp):
        parts = (_mask(value, columns, depth + 1) for value in node.values)
        return reduce(np.logical_and if isinstance(node.op, ast.And) else np.logical_or, parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_mask(node.operand, columns, depth + 1)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.left, ast.Name):
        return _compare(columns, node.left.id, node.ops[0], node.comparators[0])
    raise UserError(f"where: cannot use {shorten(ast.unparse(node), 200)!r}; {_HINT}")


def _compare(columns: _Columns, name: str, kind: ast.cmpop, other: ast.expr) -> np.ndarray:
    texts = columns.texts(name)
    try:
        value = ast.literal_eval(other)
    except (ValueError, TypeError):
        raise UserError(f"where: {shorten(ast.unparse(other), 200)!r} is no value; {_HINT}") from None
    if isinstance(kind, ast.In | ast.NotIn) and isinstance(value, list | tuple):
        found = np.zeros(len(texts), bool)
        for item in dict.fromkeys(map(_check, value)):
            found |= _test(columns, name, operator.eq, item)
        return found if isinstance(kind, ast.In) else ~found
    if type(kind) in _COMPARE:
        return _test(columns, name, _COMPARE[type(kind)], _check(value))
    raise UserError(f"where: cannot compare like that; {_HINT}")


def _check(value: object) -> str | float:
    """Return what a column can be compared with."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"where: {shorten(repr(value), 200)} must be a string or a number; {_HINT}")
    return value if isinstance(value, str) else float(str(value))  # what is too large is infinite


def _test(columns: _Columns, name: str, compare: Callable[[Any, Any], Any], value: str | float) -> np.ndarray:
    if isinstance(value, str):
        return np.asarray(compare(columns.texts(name), value), dtype=bool)
    numbers = columns.numbers(name)
    return np.asarray(compare(numbers, value) & ~np.isnan(numbers), dtype=bool)
