"""`benchmarks/hostile.py` runs in small, and sees each kind of failure if there is one."""

import importlib
import json
import mmap
import os
import signal
import sys
from pathlib import Path

import pytest

from support.children import start_python

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hostile(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # it sets them: here they come back
        monkeypatch.setenv(name, "1")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("hostile")


@pytest.fixture
def place(hostile, tmp_path):
    return lambda kind, index: hostile.Place(kind, index, 0, tmp_path / "base", tmp_path / "attack")


def test_few_inputs_and_kills_are_counted(tmp_path):
    """The one test of all: workers, forks and kills as they are run before a release. It takes seconds."""
    counts, kinds = tmp_path / "counts.json", ["npz", "stores", "kills:1"]  # of embed, which takes a second
    command = [ROOT / "benchmarks" / "hostile.py", "--inputs=6", "--kills=1", f"--json={counts}"]
    errors = tmp_path / "errors"
    process, output = start_python(*command, "--only", *kinds, errors=errors, CUDA_VISIBLE_DEVICES="")
    with output:
        printed = output.read()
    process.join()
    assert "Traceback" not in errors.read_text(), errors.read_text()
    found = json.loads(counts.read_text())["kinds"]
    tried = {kind: about["tried"] for kind, about in found.items() if about["tried"]}
    failed = sum(len(about["failed"]) for about in found.values())
    assert failed == 0, printed
    assert [*tried] == ["npz", "stores", "kills"]
    assert tried["kills"] == 1
    assert abs(sum(tried.values()) - 7) <= 3
    assert f"{sum(tried.values())} tried, {failed} failed" in printed
    assert process.exitcode == 0


def test_an_exception_of_another_kind_is_a_failure(hostile, place, monkeypatch):
    def broken(*_, **__):
        raise KeyError("planted")

    monkeypatch.setattr(hostile.images, "decode_image", broken)
    assert hostile.attempt(place("images", 1)).startswith("KeyError: 'planted'")


def test_a_sound_input_is_no_failure(hostile, place):
    assert hostile.attempt(place("images", 1)) is None


def test_each_attack_can_be_repeated(hostile, place):
    options = hostile.argparse.Namespace(inputs=10, kills=1, only=["npz:7", "npz:3"])
    assert hostile.plan(options) == [("npz", 7), ("npz", 3)]
    assert place("npz", 7).lots.random() == place("npz", 7).lots.random() != place("npz", 8).lots.random()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: print("a class named \x1b[31mred"), "control character"),
        (lambda: print("\x9b2J"), "control character"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: sys.exit(3), "exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), f"exit code -{signal.SIGKILL}"),
        (lambda: print("x" * 20_000), "20,000 characters"),
        (lambda: signal.pause(), "hangs over"),
    ],
    ids=["escape", "c1", "traceback", "code", "signal", "long", "hang"],
)
def test_forked_commands_must_end_well(hostile, call, expected):
    with pytest.raises(hostile.Fault, match=expected):
        hostile.forked(call, limit=0.3 if expected == "hangs over" else 60)


@pytest.mark.parametrize(
    "name", ["a.json", "a.png", "a.html", "a.svg", "a.npz", "a.safetensors", "a.pdf", "a.toml", "a.jsonl"]
)
def test_half_a_file_is_seen(hostile, tmp_path, name):
    (tmp_path / name).write_bytes(b"\x89PNG {" + b"half\n" * 9)
    with pytest.raises(hostile.Fault, match="half a file"):
        hostile.writing.whole(tmp_path)


def test_memory_beyond_what_is_documented_is_seen(hostile, place, monkeypatch):
    def take(place):
        # Not from the allocator: that may have kept as much from an earlier test, and nothing would grow.
        with mmap.mmap(-1, 3 * 2**26) as memory:
            memory[:: mmap.PAGESIZE] = bytes(len(memory) // mmap.PAGESIZE)

    monkeypatch.setitem(hostile.KINDS, "cut", (0.0, take))
    monkeypatch.setattr(hostile, "MEMORY", 2**26)
    assert "GB of memory" in hostile.attempt(place("cut", 0))
