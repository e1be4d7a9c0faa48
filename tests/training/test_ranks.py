"""Three ranks over a global batch are one process over it: every loss, every parameter."""

import os
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from firstpage.data.sampler import GroupSampler
from firstpage.models.backbones import freeze_batch_norm
from firstpage.models.embedder import Embedder
from firstpage.training.gradient_caching import backward
from firstpage.training.launching import join_ranks, sync_batch_norm
from firstpage.training.memory import Memory
from firstpage.training.ranks import Ranks
from support import ensemble_steps, steps
from support.children import run_ranks, start_python

ROWS = (12, 11)  # even, and the shorter last batch of an epoch: 3 + 4 + 4
FEW = (1, 2)  # fewer rows than ranks: a rank has none
FEW_FOR = ("topk", "contrastive", "proxy-nca", "margin-all-betas", "npair")


def step(ranks, name, rows, chunk):
    """One step of a rank: loss and gradients."""
    network, criteria = steps.made(name)
    torch.rand(ranks.rank + 1)  # as dropout would: ranks have drawn unequally, their losses must not
    images, labels, ids = steps.batch(rows)

    def loss(levels):
        everyone = [ranks.gather(level, rows) for level in levels]
        return steps.total(criteria, everyone, labels, image_ids=ids)

    value = backward(network, lambda at: network(images[at]), loss, [ranks.share(rows)], chunk)
    ranks.all_reduce_gradients(network.parameters(), criteria.parameters())
    return value, steps.gradients(network, criteria)


def run(ranks, name):
    """Some steps of a run with everything: memory, chunks, dropout off, clipping, Adam, a shorter batch."""
    network, criteria = steps.made(name)
    memories = nn.ModuleList(Memory(16, steps.DIM) for _ in range(2)).double()
    learned = [*network.parameters(), *criteria.parameters()]
    optimizer = torch.optim.AdamW(learned, lr=1e-2)
    values = []
    for number, rows in enumerate((12, 11, 12, 11)):
        images, labels, ids = steps.batch(rows, number)

        def loss(levels, rows=rows, number=number, labels=labels, ids=ids):
            everyone = [ranks.gather(level, rows) for level in levels]
            value = sum(
                steps.total([part], [level], labels, number, **memory.candidates(level, labels, ids))
                for part, level, memory in zip(criteria, everyone, memories, strict=True)
            )
            for level, memory in zip(everyone, memories, strict=True):
                memory.push(level, labels, ids)
            return value

        optimizer.zero_grad()
        share = ranks.share(rows)
        values.append(backward(network, lambda at, images=images: network(images[at]), loss, [share], 3))
        ranks.all_reduce_gradients(network.parameters(), criteria.parameters())
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()
    return torch.stack(values), dict(network.state_dict()), dict(memories.state_dict())


def embedded(ranks, rows):
    torch.manual_seed(0)
    model = Embedder.create(backbone="small", dim=4, stored=32, crop=32).eval()
    return ranks.embed(model, Noise(), rows)


class Noise:
    """Stored pixels that nobody stored."""

    ok = np.ones(9, bool)

    def __len__(self):
        return 9

    def batch(self, rows, device=None):
        generator = torch.Generator().manual_seed(1)
        return torch.randint(256, (9, 32, 32, 3), generator=generator, dtype=torch.uint8)[
            torch.as_tensor(rows)
        ]


RUNS = ("topk", "margin", "spectral-clust", "npair-angular")


def work(rank, world, port, folder):
    """What each process of a job does: all that the tests below look at."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="localhost", MASTER_PORT=str(port))
    found = {}
    with join_ranks(steps.CPU) as ranks:
        for name in steps.LOSSES:
            for rows in ROWS:
                found[name, rows] = step(ranks, name, rows, 0)
            found[name, "chunks"] = step(ranks, name, ROWS[1], 2)
        for name in FEW_FOR:
            for rows in FEW:
                found[name, rows] = step(ranks, name, rows, 0)
        for name in RUNS:
            found["run", name] = run(ranks, name)
        for name in ensemble_steps.SYSTEMS:
            found["ensemble", name] = ensemble_steps.step_of(ranks, name)
        for rows in (9, 1):
            found["embedded", rows] = embedded(ranks, np.arange(9)[::-1][:rows].copy())
        norm = nn.BatchNorm1d(2)
        norm.running_mean.fill_(rank + 1)
        ranks.barrier()
        ranks.broadcast_tensors(norm.buffers())
        found["agreed"], found["told"] = norm.running_mean, ranks.broadcast({"rank": rank})
        found["written"] = ranks.is_first
    torch.save(found, Path(folder, f"{rank}.pt"))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """What every rank of a job found; two ranks take the same code, and `test_fit_at_scale` has them."""
    world, folder = 3, tmp_path_factory.mktemp("job")
    assert run_ranks(work, world, folder) == [0] * world
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)]


@pytest.mark.parametrize("name", steps.LOSSES)
def test_ranks_equal_one_process(job, name):
    for rows in (*ROWS, *(FEW if name in FEW_FOR else ())):
        wanted = steps.plain(name, rows)
        for found in job:
            steps.assert_same(found[name, rows], wanted)
    wanted = steps.plain(name, ROWS[1])
    for found in job:
        steps.assert_same(found[name, "chunks"], wanted)


def test_gradients_are_equal_to_the_bit_on_all_ranks(job):
    for name in steps.LOSSES:
        first, *others = (found[name, ROWS[1]][1] for found in job)
        for other in others:
            assert all(torch.equal(other[key], value) for key, value in first.items())


@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_memory_chunks_and_adam_equals_one_process(job, name):
    wanted = run(Ranks(), name)
    assert wanted[0].isfinite().all()
    for found in job:
        torch.testing.assert_close(found["run", name], wanted, rtol=1e-6, atol=1e-6)
        memories = found["run", name][2]
        assert all(torch.equal(memories[key], value) for key, value in job[0]["run", name][2].items())


@pytest.mark.parametrize("name", ensemble_steps.SYSTEMS)
def test_ranks_and_chunks_of_an_ensemble_equal_one_process(job, name):
    wanted = ensemble_steps.alone(name)
    assert any(key.startswith("diversity.") for key in wanted[1]) == (name == "bier")
    for found in (*(part["ensemble", name] for part in job), ensemble_steps.alone(name, chunk=4)):
        steps.assert_same(found, wanted, 1e-8)
    for found in job:
        for key, value in job[0]["ensemble", name][1].items():
            assert torch.equal(found["ensemble", name][1][key], value)


def test_evaluation_is_shared(job):
    for rows in (9, 1):
        wanted = embedded(Ranks(), np.arange(9)[::-1][:rows].copy())
        for found in job:
            torch.testing.assert_close(found["embedded", rows], wanted)


def test_all_follow_the_first(job):
    assert [found["agreed"].tolist() for found in job] == [[1.0, 1.0]] * len(job)
    assert [found["told"] for found in job] == [{"rank": 0}] * len(job)
    assert [found["written"] for found in job] == [True] + [False] * (len(job) - 1)


def test_shares_are_the_samplers():
    labels = np.arange(53) // 5  # the last batch has 5 rows
    whole = GroupSampler(labels, 12, 3, drop_last=False)
    for world in (2, 3):
        parts = [
            GroupSampler(labels, 12, 3, drop_last=False, rank=rank, world=world) for rank in range(world)
        ]
        for epoch in (0, 1):
            assert whole.epoch == epoch
            for rows, *mine in zip(whole, *parts, strict=True):
                for rank, share in enumerate(mine):
                    assert rows[Ranks(rank, world).share(len(rows))] == share
        whole.set_epoch(0)


def test_wrong_share_is_refused():
    with pytest.raises(ValueError, match=r"gather\(rows=10\): rank 1 of 3 has 4 rows, not 3: take those of"):
        Ranks(1, 3).gather(torch.zeros(4, 2), 10)


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
FAILING = """
    import torch
    from firstpage.training.launching import join_ranks
    with join_ranks(torch.device("cpu")) as ranks:
        ranks.barrier()
        if ranks.rank == 1:
            raise ValueError("loss.k=0: k must be at least 1")
        ranks.gather(torch.zeros(1, 2), 2)  # what the others are at when one dies
"""


def test_a_failing_rank_ends_the_job_with_its_own_error(tmp_path):
    script = tmp_path / "failing.py"
    script.write_text(textwrap.dedent(FAILING))
    process, output = start_python(*TORCHRUN, script, errors=tmp_path / "errors")
    with output:
        output.read()
    process.join()
    assert process.exitcode != 0
    errors = (tmp_path / "errors").read_text()
    assert "rank 1 of 2: ValueError: loss.k=0: k must be at least 1" in errors
    assert "rank 0 of 2" not in errors  # it has nothing to say that would help
    summary = errors[errors.index("Root Cause") :]
    assert "rank      : 1" in summary
    assert "ValueError: loss.k=0: k must be at least 1" in summary


WAITING = """
    import time, torch
    from firstpage.training.launching import join_ranks
    with join_ranks(torch.device("cpu")) as ranks:
        ranks.barrier()
        if ranks.is_first:
            print("all are here", flush=True)
        time.sleep(60)
        print("outlived", flush=True)
"""


def test_ranks_do_not_outlive_torchrun(tmp_path):
    script = tmp_path / "waiting.py"
    script.write_text(textwrap.dedent(WAITING))
    process, output = start_python(*TORCHRUN, script)
    with output:
        assert output.readline() == "all are here\n"
        process.kill()
        process.join()
        assert output.read() == ""  # the ranks have it open too, until they end


def test_synchronized_batch_norm_needs_gpus():
    with pytest.raises(ValueError, match=r"train\.sync_batch_norm=true: torch supports it on GPUs only"):
        sync_batch_norm(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has synchronized batch norm on GPUs only")
def test_frozen_batch_norms_are_not_synchronized():
    frozen, learning = nn.Sequential(nn.BatchNorm2d(4)), nn.Sequential(nn.BatchNorm2d(4))
    freeze_batch_norm(frozen)
    model = nn.ModuleList([frozen, learning]).cuda()
    sync_batch_norm(model)
    assert type(frozen[0]) is nn.BatchNorm2d
    assert type(learning[0]) is nn.SyncBatchNorm
