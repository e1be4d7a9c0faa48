"""Worker processes: what a file does to its worker is the fault of this file, and of no other."""

import os
import signal

import pytest

from firstpage.data import worker
from firstpage.data.decode import NO_MEMORY, Unreadable
from firstpage.data.workers import Workers
from firstpage.errors import UserError
from support.broken import picture
from support.lethal import allocate, die_reading, spin


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, NO_MEMORY),
        (signal.SIGPROF, "takes more than 10 s to decode"),
        (signal.SIGBUS, r"crashes its decoder \(SIGBUS\)"),
    ],
    ids=["memory", "time", "crash"],
)
def test_a_file_that_kills_its_worker_is_unreadable_and_no_other(tmp_path, number, reason):
    for name in ("lethal.png", "sound.png"):
        picture().save(tmp_path / name)
    with Workers(1) as workers:
        with pytest.raises(Unreadable, match=f"lethal.png: {reason}"):
            workers.submit(die_reading, str(tmp_path / "lethal.png"), number).result()
        assert workers.submit(die_reading, str(tmp_path / "sound.png"), number).result() == (120, 90)


def test_workers_that_are_killed_without_a_file_are_an_error_for_the_user():
    with (
        Workers(1) as workers,
        pytest.raises(UserError, match=r"worker died \(killed by SIGKILL\): if memory"),
    ):
        workers.submit(signal.raise_signal, signal.SIGKILL).result()


def test_workers_have_a_limit_of_time_and_one_of_memory(tmp_path):
    picture().save(tmp_path / "a.png")
    path = str(tmp_path / "a.png")
    with Workers(1) as workers:
        with pytest.raises(Unreadable, match="takes more than 10 s to decode"):
            workers.submit(spin, path).result()
        with pytest.raises(Unreadable, match=NO_MEMORY):
            workers.submit(allocate, path, worker.MAX_MEMORY + os.cpu_count() * 2**24).result()
