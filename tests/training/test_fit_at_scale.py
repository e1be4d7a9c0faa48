"""fit over ranks, in chunks and with a memory: the same run as plain, where it should be."""

import json
import os
import socket
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from firstpage.data import Catalog
from firstpage.training import Recipe, fit

IMAGES = 90


class Noise:
    """Stored pixels that nobody stored."""

    ok = np.ones(IMAGES, bool)

    def __len__(self):
        return IMAGES

    def batch(self, rows, device=None):
        generator = torch.Generator().manual_seed(1)
        pixels = torch.randint(256, (IMAGES, 36, 36, 3), generator=generator, dtype=torch.uint8)
        return pixels[torch.as_tensor(np.asarray(rows))]


CATALOG = Catalog(
    "noise",
    Path(),
    [str(row) for row in range(IMAGES)],
    np.arange(IMAGES) // 3,
    [str(label) for label in range(IMAGES // 3)],
    {"train": np.arange(60), "test": np.arange(60, IMAGES)},
)


def trained(folder, *changes):
    """The final weights, losses and figures of a short run; its lots are drawn, its batch norms frozen."""
    torch.set_num_threads(1)
    recipe = Recipe.of(
        {
            "model": {"backbone": "small", "dim": 8, "stored": 36, "crop": 32, "freeze_batch_norm": True},
            "loss": {"name": "margin", "classes": True},
            "batch": {"size": 20, "images_per_class": 3},
            "optimiser": {"name": "sgd", "lr": 0.05, "clip": 1.0},
            "schedule": {"epochs": 3},
            "train": {"evaluate_every": 3, "ema": 0.5},
        }
    ).changed(changes)
    result = fit(recipe, CATALOG, folder, device="cpu", pixels=Noise(), progress=False)
    return {"weights": dict(result.model.state_dict()), "figures": result.history}


def losses_of(folder):
    lines = (json.loads(line) for line in Path(folder, "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def one_rank(rank, world, port, folder, changes):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="localhost", MASTER_PORT=str(port))
    torch.save(trained(folder / "run", *changes), folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return {
        changes: (trained(folder := tmp_path_factory.mktemp("plain"), *changes), losses_of(folder))
        for changes in ((), ("memory.size=40",))
    }


def test_chunks_change_nothing(plain, tmp_path):
    found = trained(tmp_path, "batch.chunk=6")
    torch.testing.assert_close(found["weights"], plain[()][0]["weights"], rtol=1e-3, atol=1e-5)
    assert losses_of(tmp_path) == pytest.approx(plain[()][1], rel=1e-4)


def test_a_memory_changes_the_loss_once_it_is_full(plain):
    assert plain["memory.size=40",][1] != pytest.approx(plain[()][1], rel=1e-3)


def test_three_ranks_with_memory_and_chunks(plain, tmp_path):
    """20 images over three ranks: shares of 6, 7 and 7."""
    wanted, wanted_losses = plain["memory.size=40",]
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "firstpage.training"])
    changes = ("memory.size=40", "batch.chunk=4")
    processes = [
        context.Process(target=one_rank, args=(rank, 3, port, tmp_path, changes), daemon=True)
        for rank in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    for other in found:
        assert other["figures"] == found[0]["figures"]
        assert all(torch.equal(other["weights"][name], value) for name, value in found[0]["weights"].items())
    torch.testing.assert_close(found[0]["weights"], wanted["weights"], rtol=1e-3, atol=1e-5)
    assert losses_of(tmp_path / "run") == pytest.approx(wanted_losses, rel=1e-4)


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match=r"memory\.size=40: ProxyNCA does not look at it"):
        trained(None, "loss.name=proxy-nca", "memory.size=40")
    with pytest.raises(ValueError, match=r"memory\.size=61: there are 60 training images"):
        trained(None, "memory.size=61")
    with pytest.raises(ValueError, match=r"batch\.chunk=-1: must not be negative"):
        trained(None, "batch.chunk=-1")
    with pytest.raises(ValueError, match=r"train\.sync_batch_norm=true: torch has it on GPUs only"):
        trained(None, "train.sync_batch_norm=true")
