"""fit over ranks, in chunks and with a memory: the same run as plain, where it should be."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from firstpage.recipes import Recipe
from firstpage.training import fit, ranks, reproduce, setup
from support.children import run_ranks
from support.noise import Noise, noise_catalog

IMAGES = 90


CATALOG = noise_catalog(IMAGES, 3, 60)


def trained(folder, *changes):
    """The final weights, losses and figures of a short run; its lots are drawn, its batch norms frozen."""
    torch.set_num_threads(1)
    recipe = Recipe.of(
        {
            "model": {"backbone": "small", "dim": 8, "stored": 36, "crop": 32, "freeze_batch_norm": True},
            "loss": {"name": "margin", "classes": True},
            "batch": {"size": 20, "images_per_class": 3},
            "optimizer": {"name": "sgd", "lr": 0.05, "clip": 1.0},
            "schedule": {"epochs": 2},
            "train": {"protocol": "paper", "evaluate_every": 2, "ema": 0.5},
        }
    ).changed(changes)
    result = fit(recipe, CATALOG, folder, device="cpu", pixels=Noise(IMAGES), progress=False)
    return {"weights": dict(result.model.state_dict()), "figures": result.history}


def losses_of(folder):
    lines = (json.loads(line) for line in Path(folder, "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def one_rank(rank, world, port, folder, changes, lives):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="localhost", MASTER_PORT=str(port))
    ranks.GRACE = 0.0
    if lives is not None:
        step = torch.optim.SGD.step
        left = iter(range(lives))

        def deadly(*arguments):
            if rank == 1 and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*arguments)

        torch.optim.SGD.step = deadly
    try:
        torch.save(trained(folder / "run", *changes), folder / f"{rank}.pt")
    except (RuntimeError, ValueError) as error:
        (folder / f"{rank}.txt").write_text(str(error))
        raise SystemExit(3) from None


def job(world, folder, *changes, lives=None):
    """The exit codes of a job's ranks; the second is killed before a step of it, if asked for."""
    folder.mkdir(exist_ok=True)
    return run_ranks(one_rank, world, folder, changes, lives)


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
    assert job(3, tmp_path, "memory.size=40", "batch.chunk=4") == [0, 0, 0]
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    for other in found:
        assert other["figures"] == found[0]["figures"]
        assert all(torch.equal(other["weights"][name], value) for name, value in found[0]["weights"].items())
    torch.testing.assert_close(found[0]["weights"], wanted["weights"], rtol=1e-3, atol=1e-5)
    assert losses_of(tmp_path / "run") == pytest.approx(wanted_losses, rel=1e-4)


SYSTEMS = (
    ("loss.name=htl", "batch.neighbors=2"),
    ("loss.name=pddm", "model.rerank=true"),
    ("model.head=pca", "batch.size=18"),
    ("schedule.head_epochs=2", "batch.size=18"),
)


@pytest.mark.parametrize("changes", SYSTEMS, ids=lambda changes: changes[0])
def test_two_ranks_train_a_system_as_one_process_does(tmp_path, changes):
    wanted = trained(tmp_path / "plain", *changes)
    assert job(2, tmp_path / "job", *changes) == [0, 0]
    found = [torch.load(tmp_path / "job" / f"{rank}.pt") for rank in range(2)]
    assert all(torch.equal(found[1]["weights"][name], value) for name, value in found[0]["weights"].items())
    torch.testing.assert_close(found[0]["weights"], wanted["weights"], rtol=1e-3, atol=1e-5)
    assert losses_of(tmp_path / "job" / "run") == pytest.approx(losses_of(tmp_path / "plain"), rel=1e-4)


EVERYTHING = (
    "model.freeze_batch_norm=false",
    "model.head=multilevel",
    "memory.size=40",
    "batch.chunk=4",
    "train.evaluate_steps=3",
    "train.checkpoint_every=0",
)


def test_a_rank_that_is_killed_ends_the_job_and_the_same_job_goes_on(tmp_path):
    assert job(2, tmp_path / "unbroken", *EVERYTHING) == [0, 0]
    assert job(2, tmp_path / "broken", *EVERYTHING, lives=3) == [3, -signal.SIGKILL]
    assert (tmp_path / "broken" / "0.txt").read_text().startswith("another rank is gone: see its own error")
    kept = sorted((tmp_path / "broken" / "run" / "checkpoint").iterdir())
    assert kept[-1].name == "step-000000004.safetensors"  # the others end with the step
    assert job(2, tmp_path / "broken", *EVERYTHING) == [0, 0]
    for name in ("best/model.safetensors", "last/model.safetensors", "log.jsonl"):
        unbroken, broken = (tmp_path / which / "run" / name for which in ("unbroken", "broken"))
        assert unbroken.read_bytes() == broken.read_bytes()


def test_a_run_goes_on_with_another_number_of_ranks(plain, tmp_path):
    assert job(2, tmp_path, "train.checkpoint_every=0", "memory.size=40", lives=3) == [3, -signal.SIGKILL]
    found = trained(tmp_path / "run", "train.checkpoint_every=0", "memory.size=40")
    wanted, wanted_losses = plain["memory.size=40",]
    torch.testing.assert_close(found["weights"], wanted["weights"], rtol=1e-3, atol=1e-5)
    assert losses_of(tmp_path / "run") == pytest.approx(wanted_losses, rel=1e-4)


def test_of_many_ranks_the_first_tells_of_a_nan_and_keeps_it(tmp_path):
    assert job(2, tmp_path, "optimizer.lr=1e30", "optimizer.clip=0.0") == [3, 3]
    said = [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)]
    assert said[0].startswith("after step 1: NaN or infinity on images ")
    assert said[1].startswith("another rank is gone: see its own error")
    found = reproduce(tmp_path / "run" / "nonfinite.safetensors")
    assert found.where is not None


def test_settings_that_cannot_be(monkeypatch):
    with pytest.raises(ValueError, match=r"memory\.size=40: ProxyNCA does not use it"):
        trained(None, "loss.name=proxy-nca", "memory.size=40")
    with pytest.raises(ValueError, match=r"memory\.size=61: there are 60 training images"):
        trained(None, "memory.size=61")
    with pytest.raises(ValueError, match=r"batch\.chunk=-1: must not be negative"):
        trained(None, "batch.chunk=-1")
    with pytest.raises(ValueError, match=r"train\.sync_batch_norm=true: torch supports it on GPUs only"):
        trained(None, "train.sync_batch_norm=true")
    with monkeypatch.context() as patch:
        patch.setattr(setup, "sync_batch_norm", lambda model: None)
        with pytest.raises(ValueError, match=r"train\.sync_batch_norm=true: with batch\.chunk there is no"):
            trained(None, "train.sync_batch_norm=true", "batch.chunk=4")
    with pytest.raises(ValueError, match=r"loss\.reduction='none': training needs one number"):
        trained(None, "loss.reduction=none")
