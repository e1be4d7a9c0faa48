"""JSON and TOML of strangers, read within bounds, so that no file exhausts memory or the stack."""

import json
import math
import os
import tomllib
import zlib
from collections import Counter
from typing import Any

from firstpage import durable
from firstpage.errors import UserError

MAX_BYTES = 2**24  # of a JSON file: the names of a million classes
MAX_TOML_BYTES = 2**16  # the parser takes quadratic time for keys of many parts
MAX_DEPTH = 32
MAX_KEY = 200  # characters


def read_json(path: str | os.PathLike[str], *, nan: bool = False) -> Any:  # noqa: ANN401
    """Read a JSON file as `parse_json` does; of an error, name the file.

    >>> read_json("/dev/null")
    Traceback (most recent call last):
    firstpage.errors.UserError: /dev/null: is a folder, a pipe or a device, not a regular file
    """
    data = _read_bytes(path, MAX_BYTES)
    try:
        return parse_json(data, nan=nan)
    except UserError as error:
        raise UserError(f"{path}: {error}: restore it from a copy") from None


def json_checksum(table: dict[str, Any]) -> int:
    """Return a checksum of a table, which a JSON file of it can contain beside it.

    >>> json_checksum({"a": 1, "b": 2}) == json_checksum({"b": 2, "a": 1})
    True
    """
    return zlib.crc32(json.dumps(table, sort_keys=True).encode())


def parse_json(data: bytes, *, nan: bool = False) -> Any:  # noqa: ANN401
    """Parse JSON, and refuse what a parser may accept but no file of this package holds.

    That is: a key given twice, nesting deeper than `MAX_DEPTH`, whole numbers beyond 64 bits, and keys that
    are long or not printable.

    Args:
        data: The text, in UTF-8.
        nan: Whether NaN and infinities are allowed.

    Raises:
        UserError: It is not valid.

    >>> parse_json(b'{"step": 3}')
    {'step': 3}
    >>> parse_json(b'{"step": 3, "step": 4}')
    Traceback (most recent call last):
    firstpage.errors.UserError: key 'step' is given twice
    """
    if not data.strip():
        raise UserError("is empty")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except UserError:
        raise
    except RecursionError:
        raise UserError(f"is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise UserError(f"is not valid JSON ({error})") from None
    _check(value, nan)
    return value


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML file within the same bounds.

    Raises:
        UserError: It is not valid, or holds no key; the message names the file.

    >>> read_toml("/dev/null")
    Traceback (most recent call last):
    firstpage.errors.UserError: /dev/null: is a folder, a pipe or a device, not a regular file
    """
    data = _read_bytes(path, MAX_TOML_BYTES)
    try:
        table = tomllib.loads(data.decode("utf-8"))
        _check(table, nan=True)
    except RecursionError:
        raise UserError(f"{path}: is nested deeper than {MAX_DEPTH} levels") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except ValueError as error:
        raise UserError(f"{path}: is not valid TOML ({error})") from None
    if not table:
        raise UserError(f"{path}: is empty: give it at least one setting")
    return table


def _read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    with durable.open_regular(path, most) as file:
        return file.read(most)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise UserError(f"key {twice[:MAX_KEY]!r} is given twice")
    return table


def _check(value: Any, nan: bool) -> None:  # noqa: ANN401
    """Refuse what is nested too deeply, and numbers and keys that nothing here can hold."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                bad = next((key for key in part if len(key) > MAX_KEY or not key.isprintable()), None)
                if bad is not None:
                    raise UserError(f"key {bad[:MAX_KEY]!r} is too long, or not printable")
                inner += part.values()
            elif isinstance(part, list):
                inner += part
            elif isinstance(part, int) and not -(2**63) <= part < 2**63:
                raise UserError("holds a whole number that does not fit into 64 bits")
            elif isinstance(part, float) and not nan and not math.isfinite(part):
                raise UserError(f"holds {part}, which is not a finite number")
        if not inner:
            return
        level = inner
    raise UserError(f"is nested deeper than {MAX_DEPTH} levels")
