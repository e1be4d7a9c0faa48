"""The learned similarity of PDDM: what is mined, and the memory it takes."""

import pytest
import torch

from firstpage import Pairs, losses
from firstpage.losses import pair_similarity
from firstpage.losses.pddm import hard_quadruplets
from support import oracles, system_oracles
from support.batches import batch, pddm


def test_quadruplets_equal_the_oracle():
    similarity = pddm().similarity
    weights = similarity.state_dict()
    for candidates in ((), batch(12, count=9)):
        queries, labels = batch(11, count=8)
        found = hard_quadruplets(Pairs.of(queries, labels, *candidates), similarity)
        one = oracles.Batch(queries, labels, *candidates)
        for i in range(8):
            wanted = system_oracles.quadruplet(
                one, i, lambda a, b: system_oracles.pair_similarity(a, b, weights)
            )
            assert wanted in (None, tuple(int(part[i]) for part in found))


def test_blocks_bound_what_is_in_memory_and_change_nothing(monkeypatch):
    similarity = losses.PairSimilarity(dim=8)
    queries, candidates, sizes = torch.randn(10, 8), torch.randn(12, 8), []
    whole = similarity.table(queries, candidates)
    similarity.both.register_forward_pre_hook(lambda layer, inputs: sizes.append(inputs[0].numel()))
    monkeypatch.setattr(pair_similarity, "BLOCK", 3 * 12 * 16)
    torch.testing.assert_close(similarity.table(queries, candidates), whole)
    assert sizes == [3 * 12 * 16] * 3 + [12 * 16]
    assert not whole.requires_grad


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match=r"PairSimilarity\(dim=0\): dim must be at least 1"):
        losses.PDDM(dim=0)
    with pytest.raises(ValueError, match=r"PDDM\(beta=-1\): need 0 <= beta < infinity"):
        losses.PDDM(dim=4, beta=-1)
    with pytest.raises(ValueError, match=r"embeddings have 3 dimensions: PDDM\(dim=4\) needs dim=3"):
        losses.PDDM(dim=4)(torch.eye(3), torch.arange(3))
