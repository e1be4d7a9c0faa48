"""Filters of an index as expressions of Milvus.

Milvus and Milvus Lite do not agree on what the negation of a comparison with a missing value is. So each row
has a text for every column, a number, and whether that number is one; and `not` is resolved here, down to
comparisons of values that are there.
"""

import ast
import json
import math
import sys
from collections.abc import Mapping

_SIGNS: dict[type[ast.cmpop], tuple[str, str]] = {  # and what each becomes under `not`
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", ">="),
    ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"),
}


def milvus_columns(columns: Mapping[str, str]) -> dict[str, str | float | bool]:
    """Return what Milvus keeps of the columns of an image.

    >>> milvus_columns({"price": "8"})
    {'text:price': '8', 'number:price': 8.0, 'is:price': True}
    """
    kept: dict[str, str | float | bool] = {}
    for name, text in columns.items():
        number = _number(text)
        kept |= {f"text:{name}": text, f"number:{name}": number or 0.0, f"is:{name}": number is not None}
    return kept


def milvus_filter(where: str) -> str:
    """Return a filter, which `matching_rows` has accepted, as an expression of Milvus.

    >>> milvus_filter("label in ['mug', 'cup'] or not label > 'x'")
    '((label == "mug" or label == "cup") or label <= "x")'
    >>> milvus_filter("not price < 20")
    '(columns["is:price"] == false or columns["number:price"] >= 20.0)'
    """
    return _expression(ast.parse(where, mode="eval").body, False)


def _expression(node: ast.expr, negated: bool) -> str:
    if isinstance(node, ast.BoolOp):
        parts = [_expression(value, negated) for value in node.values]
        return _join("and" if isinstance(node.op, ast.And) != negated else "or", parts)
    if isinstance(node, ast.UnaryOp):
        return _expression(node.operand, not negated)
    if not isinstance(node, ast.Compare) or not isinstance(node.left, ast.Name):
        raise TypeError(f"{ast.unparse(node)}: not a filter")  # matching_rows would have refused it
    name, kind, value = node.left.id, node.ops[0], ast.literal_eval(node.comparators[0])
    if not isinstance(kind, ast.In | ast.NotIn):
        return _comparison(name, *_SIGNS[type(kind)], value, negated)
    negated ^= isinstance(kind, ast.NotIn)
    parts = [_comparison(name, "==", "!=", item, negated) for item in value]
    return _join("and" if negated else "or", parts) if parts else f"id {'>=' if negated else '<'} -1"


def _comparison(name: str, sign: str, opposite: str, value: str | float, negated: bool) -> str:
    """Return a comparison, or what is true exactly where it is not."""
    field = name if name in ("label", "path") else None
    if isinstance(value, str):
        field = field or f"columns[{_quote(f'text:{name}')}]"
        return f"{field} {opposite if negated else sign} {_quote(value)}"
    number, known = (f"columns[{_quote(f'{kind}:{name}')}]" for kind in ("number", "is"))
    value = _number(str(value)) or 0.0
    if negated:
        return f"({known} == false or {number} {opposite} {value!r})"
    return f"({known} == true and {number} {sign} {value!r})"


def _join(word: str, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({f' {word} '.join(parts)})"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(text: str) -> float | None:
    """Return the number that a text is, as large as JSON can write one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else max(-sys.float_info.max, min(sys.float_info.max, number))
