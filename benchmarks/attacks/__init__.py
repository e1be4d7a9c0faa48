"""What every attack of `benchmarks/hostile.py` needs: its place and its lots, mutations, forked commands."""

import ctypes
import os
import random
import re
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from firstpage import cli
from firstpage.errors import UserError

T = TypeVar("T")
HANG = 20.0  # seconds that one call or command may take
LONGEST = 10_000  # characters of a message
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what a terminal obeys; a line may end, and have tabs
ESCAPE = "\x1b]0;owned\x07\x1b[31mred\x9b2J"
SIZES = (bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\0\0\0", b"\0\0\0\x80")
ODD = (None, True, -1, 0, 31.5, 1e308, nan, 10**9, 10**30, "", "x" * 5000, ESCAPE, "../../../etc/passwd", [])
MORE = ({}, [1, [2]], {"a": 1}, "http://203.0.113.1/weights.pth", "os:system", "1", -1e-300)


class Fault(AssertionError):  # noqa: N818 - not an error of this program
    """Something that must never happen, however hostile the input is."""


@dataclass
class Place:
    """One attack: where it happens, and what it draws lots with.

    Args:
        kind: The kind of attack.
        index: Its number; the first of a kind are alternately crafted and mutated.
        seed: The seed of all.
        base: The folder of sound samples, which nothing may change.
        folder: An empty folder of its own.
        beat: Says that a part of it is done, and how many seconds the next may take.
    """

    kind: str
    index: int
    seed: int
    base: Path
    folder: Path
    beat: Callable[[float], object] = lambda seconds: None

    def __post_init__(self) -> None:
        self.lots = random.Random(f"{self.seed}/{self.kind}/{self.index}")
        self.sampled = self.index % 50 == 49  # goes through the command line, too

    def crafted(self, cases: Sequence[T]) -> T | None:
        """Return the case whose turn it is, or None for a mutation."""
        turn = self.index // 2
        return cases[turn] if self.index % 2 == 0 and turn < len(cases) else None

    @contextmanager
    def refusable(self) -> Iterator[None]:
        """Let the code refuse in the block, in a message of some length. What else it raises is a failure."""
        self.beat(HANG)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except (UserError, OSError) as error:
            if len(str(error)) > LONGEST:
                raise Fault(f"a message of {len(str(error)):,} characters: {str(error)[:60]}") from None

    def command(self, *arguments: object, codes: Sequence[int] = (0, 1, 2)) -> int:
        """Run a command in a process of its own; return its exit code."""
        self.beat(HANG)
        code, _ = forked(lambda: cli.main([str(argument) for argument in arguments]), codes=codes)
        assert code is not None
        return code


def forked(
    call: Callable[[], object],
    *,
    codes: Sequence[int] = (0, 1, 2),
    limit: float = HANG,
    stop: Callable[[float], bool] = lambda seconds: False,
    file_limit: int | None = None,
) -> tuple[int | None, str]:
    """Call a function in a fork of this process, and look at how it ends and what it prints.

    Args:
        call: The function.
        codes: Exit codes that are no failure.
        limit: Seconds that it may take.
        stop: Asked again and again, with the seconds so far, whether to kill it.
        file_limit: Size in bytes that no file may exceed, as on a full disk.

    Returns:
        The exit code, None if it was killed; and its output.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        _become(call, writer, file_limit)
    os.close(writer)
    begin, output, ended = time.monotonic(), b"", False
    with open(reader, "rb", buffering=0) as pipe:
        while not ended:
            if stop(time.monotonic() - begin):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return None, ""
            if time.monotonic() - begin > limit:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise Fault(f"a command hangs over {limit:.0f} s")
            if select.select([pipe], [], [], 0.002)[0]:
                block = pipe.read(2**16)
                output, ended = output + block, not block
    text = output.decode("utf-8", "replace")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if "Traceback" in text:
        raise Fault(f"a traceback on the terminal: {' '.join(text.split())[-200:]}")
    if code not in codes:
        raise Fault(f"exit code {code}: {' '.join(text.split())[-200:]}")
    if found := CONTROL.search(text):
        raise Fault(f"the control character {found[0]!r} on the terminal")
    if max(map(len, text.splitlines() or [""])) > LONGEST:
        raise Fault(f"a line of {max(map(len, text.splitlines())):,} characters on the terminal")
    return code, text


def die_with_parent() -> None:
    """Have the system kill this process when the one that made it ends, however it ends (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _become(call: Callable[[], object], output: int, file_limit: int | None) -> NoReturn:
    """Call a function as if it were all of this process, a fork."""
    code = 0
    die_with_parent()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    try:
        call()
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def mutate(lots: random.Random, content: bytes) -> bytes:
    """Return bytes with a few changes: flipped, overwritten, doubled, left out, zeroed or cut off."""
    data = bytearray(content)
    for _ in range(lots.choice((1, 1, 1, 2, 4, 16))):
        length = lots.choice((1, 2, 4, 8, 64, 512))
        at = lots.randrange(lots.choice((len(data), min(len(data), 64))) + 1)
        change = lots.randrange(16)
        if change < 4:
            data[at : at + 1] = lots.randbytes(1)
        elif change < 8:
            data[at : at + 4] = lots.choice(SIZES)
        elif change < 10:
            data[at : at + length] = lots.randbytes(length)
        elif change < 12:
            data[at:at] = data[at : at + length]
        elif change < 14:
            del data[at : at + length]
        else:
            data[at:] = bytes(len(data) - at) if change == 14 else b""
    return bytes(data)


def restructure(lots: random.Random, value: Any) -> Any:  # noqa: ANN401
    """Return nested dicts and lists with one part left out, added, or replaced by something odd."""
    change = lots.random()
    if isinstance(value, dict) and value and change < 0.8:
        key = lots.choice(list(value))
        if change < 0.1:
            return {name: part for name, part in value.items() if name != key}
        if change < 0.2:
            return value | {lots.choice(("x", "", ESCAPE, key.upper())): lots.choice(ODD + MORE)}
        return value | {key: restructure(lots, value[key])}
    if isinstance(value, list) and value and change < 0.8:
        at = lots.randrange(len(value))
        return [*value[:at], restructure(lots, value[at]), *value[at + 1 :]]
    return lots.choice(ODD + MORE)
