"""Filters such as `label == 'mug' and price < 20`, on the labels and columns of an index."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

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
        tree = ast.parse(where, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"where: cannot read {where!r}; {_HINT}") from None
    return _mask(tree, columns, 0)


def _mask(node: ast.expr, columns: Mapping[str, np.ndarray], depth: int) -> np.ndarray:
    if depth > MAX_DEPTH:
        raise UserError(f"where: nested deeper than {MAX_DEPTH} levels")
    if isinstance(node, ast.BoolOp):
        parts = [_mask(value, columns, depth + 1) for value in node.values]
        combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return np.asarray(combine.reduce(parts))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_mask(node.operand, columns, depth + 1)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.left, ast.Name):
        return _compare(columns, node.left.id, node.ops[0], node.comparators[0])
    raise UserError(f"where: cannot use {ast.unparse(node)!r}; {_HINT}")


def _compare(columns: Mapping[str, np.ndarray], name: str, kind: ast.cmpop, other: ast.expr) -> np.ndarray:
    if name not in columns:
        raise UserError(f"where: no column {name!r}; there are {', '.join(columns)}")
    try:
        value = ast.literal_eval(other)
    except (ValueError, TypeError, RecursionError):
        raise UserError(f"where: {ast.unparse(other)!r} is no value; {_HINT}") from None
    if isinstance(kind, ast.In | ast.NotIn) and isinstance(value, list | tuple):
        found = np.zeros(len(columns[name]), bool)
        for item in value:
            found |= _test(columns[name], operator.eq, item)
        return found if isinstance(kind, ast.In) else ~found
    if type(kind) in _COMPARE:
        return _test(columns[name], _COMPARE[type(kind)], value)
    raise UserError(f"where: cannot compare like that; {_HINT}")


def _test(values: np.ndarray, compare: Callable[[Any, Any], Any], value: object) -> np.ndarray:
    if isinstance(value, str):
        return np.asarray(compare(values, value), dtype=bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"where: {value!r} must be a string or a number; {_HINT}")
    numbers = np.full(len(values), np.nan)
    for row, text in enumerate(values):
        try:
            numbers[row] = float(text)
        except ValueError:
            continue
    return np.asarray(compare(numbers, float(value)) & ~np.isnan(numbers), dtype=bool)
