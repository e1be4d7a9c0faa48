"""Two processes that share the queries find what one finds."""

from pathlib import Path

import torch

from firstpage.evaluation import evaluate
from support.children import run_ranks


def data():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(41, 5, generator=generator), torch.randint(20, (41,), generator=generator)


def work(rank, world, port, folder):
    torch.set_num_threads(1)
    meet = f"tcp://localhost:{port}"
    torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
    found = evaluate(*data(), shared=True, block=4)
    torch.save(
        (found.per_query, found.rows, found.first, found.pr_curve, found.roc_curve, found.without_positive),
        Path(folder, str(rank)),
    )
    torch.distributed.destroy_process_group()


def test_two_ranks_equal_one(tmp_path):
    assert run_ranks(work, 2, tmp_path) == [0, 0]
    alone = evaluate(*data())
    for rank in ("0", "1"):
        per_query, rows, first, pr_curve, roc_curve, without = torch.load(tmp_path / rank)
        assert list(per_query) == list(alone.per_query)
        for name, values in per_query.items():
            assert torch.equal(values, alone.per_query[name]), name
        assert torch.equal(rows, alone.rows)
        assert torch.equal(first, alone.first)
        assert without == alone.without_positive > 0
        for ours, expected in ((pr_curve, alone.pr_curve), (roc_curve, alone.roc_curve)):
            torch.testing.assert_close(ours, expected)
