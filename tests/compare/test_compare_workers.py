"""Several cells at a time: a killed worker costs its cell, which another resumes; the clock cuts all."""

import json
import os
import signal
import time
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from firstpage.compare import Table, cell_trainer, ray_workers, run_cells, workers
from firstpage.errors import UserError
from firstpage.models import Embedder
from firstpage.training import Result

RECIPE = {"model": {"backbone": "small", "dim": 8, "stored": 32, "crop": 32}}
NAMES = ["rll", "topk", "margin", "ms"]
TABLE = {
    "title": "Four",
    "recipe": RECIPE,
    "row": [{"name": name, "loss": {"name": name}} for name in NAMES],
}


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Processes are forked here: what a test replaces is replaced in them, too, and they start at once."""
    monkeypatch.setattr(workers, "START", "fork")
    return {"cache": tmp_path / "cache", "progress": False, "device": "cpu", "workers": 2}


@pytest.fixture(scope="module")
def catalog(first_glyphs):
    rows = [first_glyphs.splits[name][:8] for name in ("train", "test")]
    return first_glyphs.take(np.concatenate(rows))


@pytest.fixture(scope="module")
def result():
    metrics = {"P@1": 50.0, "R@1": 50.0, "MAP@R": 20.0}
    return Result(Embedder.create(**RECIPE["model"]), metrics, metrics, 1, seconds=1.0)


def test_a_killed_worker_costs_its_cell_which_is_resumed(options, catalog, result, tmp_path, monkeypatch):
    def fit(recipe, _, run, **__):
        begun = run / "begun"
        run.mkdir(parents=True, exist_ok=True)
        with begun.open("a") as file:
            file.write("x")
        if recipe.loss["name"] == "rll" or (recipe.loss["name"] == "topk" and begun.stat().st_size == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        result.warnings = [str(os.getpid()), begun.read_text()]
        return result

    monkeypatch.setattr(cell_trainer, "fit", fit)
    lines, out = [], tmp_path / "out"
    assert run_cells(Table.of(TABLE), catalog, out, show=lines.append, **options)
    found = {name: json.loads((out / "cells" / f"{name}-paper-0.json").read_text()) for name in NAMES}
    assert found["rll"]["error"] == "its worker has died 3 times (exit code -9)"
    assert [line for line in lines if "its worker has died 3 times" in line]
    assert found["topk"]["warnings"][1] == "xx"  # in the folder where the first one was killed
    assert found["margin"]["warnings"][1] == "x"
    others = {found[name]["warnings"][0] for name in ("topk", "margin", "ms")}
    assert str(os.getpid()) not in others
    # What has failed is tried again, and nothing else.
    monkeypatch.setattr(cell_trainer, "fit", lambda *_, **__: result)
    assert run_cells(Table.of(TABLE), catalog, out, show=lines.append, **options)
    assert "1/1  rll, seed 0, paper: R@1 50.0" in lines[-1]


def test_the_clock_and_errors_end_all_workers(options, catalog, result, tmp_path, monkeypatch):
    def fit(recipe, *_, **__):
        if recipe.loss["name"] == "rll":
            return result
        return time.sleep(600)

    monkeypatch.setattr(cell_trainer, "fit", fit)
    lines, out = [], tmp_path / "out"
    assert not run_cells(Table.of(TABLE), catalog, out, minutes=0.01, show=lines.append, **options)
    assert [path.name for path in (out / "cells").iterdir()] == ["rll-paper-0.json"]
    assert sum("the time is over at" in line for line in lines) == 2

    def fail(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(cell_trainer, "fit", fail)
    monkeypatch.setattr(workers.traceback, "print_exc", str)
    with pytest.raises(
        UserError, match=r"a worker has failed \(OSError: no space left\): finished cells are kept"
    ):
        run_cells(Table.of(TABLE), catalog, out, show=str, **options)
    with pytest.raises(UserError, match="--workers 0: give at least 1"):
        run_cells(Table.of(TABLE), catalog, out, show=str, **options | {"workers": 0})


class FakeRay:
    """What is used of Ray, in this process: calls are made when they are waited for. The first actor dies."""

    exceptions = SimpleNamespace(RayTaskError=ZeroDivisionError, RayActorError=ConnectionError)

    def __init__(self):
        self.started, self.killed = [], []

    def cluster_resources(self):
        return {"CPU": 2.0}

    def remote(self, **resources):
        assert resources == {"num_cpus": 1}

        def start(kind):
            def make(*arguments):
                actor, number = kind(*arguments), len(self.started)
                train = SimpleNamespace(remote=lambda *call: partial(self.call, number, actor, *call))
                self.started.append(SimpleNamespace(train=train))
                return self.started[-1]

            return SimpleNamespace(remote=make)

        return start

    def wait(self, pending, num_returns):
        assert num_returns == 1
        return pending[-1:], pending[:-1]

    def call(self, number, actor, *arguments):
        if number == 0:
            raise ConnectionError("the actor died")
        return actor.train(*arguments)

    def get(self, call):
        return call()

    def kill(self, actor):
        self.killed.append(actor)


def test_actors_of_a_ray_cluster_take_cells(options, catalog, result, tmp_path, monkeypatch):
    ray = FakeRay()
    monkeypatch.setattr(ray_workers, "ray_cluster", lambda address: nullcontext(ray))
    monkeypatch.setattr(cell_trainer, "fit", lambda *_, **__: result)
    lines, out = [], tmp_path / "out"
    options |= {"ray": "auto", "workers": None}
    assert run_cells(Table.of(TABLE), catalog, out, show=lines.append, **options)
    assert len(list((out / "cells").iterdir())) == len(NAMES)
    assert len(ray.started) == 3  # one for each core, and one in place of that which died
    assert len(ray.killed) == 2
    other = tmp_path / "elsewhere" / "other"  # not next to it, where it would take over what is there
    assert not run_cells(Table.of(TABLE), catalog, other, minutes=0, show=str, **options)
