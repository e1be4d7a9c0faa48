"""Checkpoints: what is read is what was written, or it is recognized."""

import errno
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firstpage import durable
from firstpage.runs.checkpoint import Checkpoints, read_state, write_state

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=values)
@settings(max_examples=30)
def test_plain_values_come_back_with_their_types(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("state") / "x"
    write_state(path, {"value": value})
    assert repr(read_state(path)["value"]) == repr(value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.empty(0, 3),
        torch.arange(6).view(2, 3).T,
        torch.rand(4, 3, 5, 5).to(memory_format=torch.channels_last),
        torch.rand(8, 6, 1, 1).to(memory_format=torch.channels_last),
        torch.tensor([True, False]),
        torch.rand(3).to(torch.bfloat16),
        torch.tensor([float("nan"), float("inf"), -0.0], dtype=torch.float64),
        torch.get_rng_state(),
    ],
)
def test_tensors_come_back_with_their_bits_and_layout(tmp_path, tensor):
    write_state(tmp_path / "x", {"a": [tensor, {1: tensor.clone()}]})
    for back in (read_state(tmp_path / "x")["a"][0], read_state(tmp_path / "x")["a"][1][1]):
        assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert back.reshape(-1).view(torch.uint8).tolist() == tensor.reshape(-1).view(torch.uint8).tolist()


def test_what_a_state_cannot_hold_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"state/a/0: a state cannot hold a set"):
        write_state(tmp_path / "x", {"a": [{1, 2}]})
    assert not list(tmp_path.iterdir())


def test_a_flipped_bit_in_any_byte_and_any_cut_is_recognized(tmp_path):
    path = tmp_path / "x"
    write_state(path, {"weights": torch.tensor([1.0, 2.0]), "step": 7, "rates": (0.1,)})
    whole = path.read_bytes()
    for place in range(len(whole)):
        flipped = whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        for damaged in (flipped, whole[:place]):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match="damaged"):
                read_state(path)
    path.write_bytes(whole)
    assert read_state(path)["step"] == 7


def test_a_damaged_one_falls_back_to_the_one_before(tmp_path):
    checkpoints = Checkpoints(tmp_path, minutes=0)
    for step in (3, 20, 100):
        checkpoints.save(step, {"step": step})
    files = sorted((tmp_path / "checkpoint").iterdir())
    assert len(files) == 2
    files[1].write_bytes(files[1].read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"step-000000100.safetensors is damaged: resuming from"):
        assert checkpoints.load_newest() == {"step": 20}
    assert checkpoints.saved == 20
    files[0].write_bytes(b"")
    with pytest.warns(UserWarning, match="step-000000020"):
        assert checkpoints.load_newest() is None
    checkpoints.remove_all()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_write_leaves_is_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path, minutes=0)
    checkpoints.save(1, {"step": 1})
    (tmp_path / "checkpoint" / "step-000000002.safetensors.part").write_bytes(b"half")
    assert checkpoints.load_newest() == {"step": 1}
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["step-000000001.safetensors"]


def test_checkpoints_are_due_by_the_clock(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    checkpoints = Checkpoints(tmp_path, minutes=2)
    due = []
    for now in (0.0, 119.0, 120.0, 130.0, 239.0, 250.0):
        due.append(checkpoints.is_due())
        if due[-1]:
            checkpoints.save(int(now), {})
    assert due == [False, False, True, False, False, True]
    assert not Checkpoints(None, minutes=0).is_due()


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, name):
    durable.write(tmp_path / "x", b"old")

    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match=r"No space left on device: '.*x'"):
        durable.write(tmp_path / "x", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"old")]


def test_links_stay_links_and_pipes_are_written_to(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    durable.write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    durable.write(tmp_path / "pipe", b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link", "pipe"}
