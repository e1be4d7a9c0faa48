"""The memory: a ring that every loss reads through Pairs, and in which no image meets itself."""

import pytest
import torch
from torch import nn

from firstpage import losses
from firstpage.pairs import Pairs, unit
from firstpage.training.memory import Memory, check_memory
from support import batches, oracles, steps

SIZE = 9


def rows(number, count=5):
    """A batch: embeddings that gradient reaches, labels, and ids, some of which are in other batches too."""
    embeddings, labels = batches.batch(number, count=count)
    generator = torch.Generator().manual_seed(number)
    return embeddings, labels, 10 * labels + torch.randint(3, (count,), generator=generator)


def filled(count=5):
    """A memory after some batches, and what it should hold, newest last."""
    memory, kept = Memory(SIZE, batches.DIM).double(), []
    for number in range(4):
        embeddings, labels, ids = rows(number, count)
        memory.push(embeddings, labels, ids)
        kept += list(zip(embeddings.detach(), labels.tolist(), ids.tolist(), strict=True))
    return memory, kept[-SIZE:]


@pytest.mark.parametrize("count", [1, 3, 5, 9, 14])
def test_the_ring_holds_the_newest(count):
    memory = Memory(SIZE, batches.DIM).double()
    kept = []
    for number in range(11):
        embeddings, labels, ids = rows(number, count)
        assert memory.used == (number * count >= SIZE)
        memory.push(embeddings, labels, ids)
        kept = (kept + list(zip(embeddings.tolist(), labels.tolist(), ids.tolist(), strict=True)))[-SIZE:]
    held = zip(memory.embeddings.tolist(), memory.labels.tolist(), memory.ids.tolist(), strict=True)
    assert sorted(held) == sorted(kept)
    assert not memory.embeddings.requires_grad


@pytest.mark.parametrize("name", batches.CASES)
def test_every_loss_against_its_oracle(name):
    """Candidates are batch and memory; an image is no candidate of its own, fresh or remembered."""
    case = batches.CASES[name]
    memory, kept = filled()
    embeddings, labels, ids = rows(7)
    loss = case.build(reduction="none")
    terms = loss(embeddings, labels, **memory.candidates(embeddings, labels, ids))

    slots = [(kept + kept)[slot - (4 * 5) % SIZE] for slot in range(SIZE)]  # where the newest was put last
    again = embeddings.detach().clone().requires_grad_()
    candidates = torch.cat([again, torch.stack([vector for vector, _, _ in slots])])
    candidate_labels = labels.tolist() + [label for _, label, _ in slots]
    candidate_ids = ids.tolist() + [image for _, _, image in slots]
    themselves = [[own == other for other in candidate_ids] for own in ids.tolist()]
    assert sum(map(sum, themselves)) > len(ids)  # some are in the memory too, or this would show nothing
    expected = case.oracle(
        oracles.Batch(again, labels.tolist(), candidates, candidate_labels, self_mask=themselves)
    )
    torch.testing.assert_close(terms, expected.detach(), rtol=1e-7, atol=1e-7)
    if expected.requires_grad:
        (gradient,) = torch.autograd.grad(terms.sum(), embeddings)
        (wanted,) = torch.autograd.grad(expected.sum(), again)
        torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", steps.LOSSES)
def test_every_loss_reads_it(name):
    """All of the registry, those that draw lots too: it changes what they say, and they stay finite."""
    memory, _ = filled()
    embeddings, labels, ids = rows(7, 40)
    loss = steps.LOSSES[name]().double()
    if isinstance(loss, losses.ProxyLoss | losses.NPair):
        kind = type(loss).__name__
        with pytest.raises(ValueError, match=rf"memory\.size=9: {kind} does not use it: remove the"):
            check_memory(loss, SIZE, 40)
        return
    check_memory(loss, SIZE, 40)
    value = loss(embeddings, labels, **memory.candidates(embeddings, labels, ids))
    value.backward()
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()
    for slot, label in enumerate(memory.labels.tolist()):  # the center of its class: better than any image
        same = labels == label
        memory.embeddings[slot] = unit(embeddings[same].detach()).mean(dim=0) if same.any() else slot
    other = loss(embeddings, labels, **memory.candidates(embeddings, labels, ids))
    assert not torch.isclose(value, other)


def test_until_it_is_full_and_the_wait_is_over_the_batch_is_alone():
    memory = Memory(SIZE, batches.DIM, start=4).double()
    for number in range(4):
        embeddings, labels, ids = rows(number)
        given = memory.candidates(embeddings, labels, ids)
        assert list(given) == ["image_ids"]
        assert given["image_ids"] is ids
        memory.push(embeddings, labels, ids)
    assert len(memory.candidates(*rows(5))["candidates"]) == 5 + SIZE


def test_a_remembered_copy_is_neither_positive_nor_negative():
    memory = Memory(2, 2)
    memory.push(torch.tensor([[0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0]), torch.tensor([7, 8]))
    embeddings, labels, ids = torch.eye(2), torch.tensor([0, 1]), torch.tensor([7, 9])
    pairs = Pairs.of(embeddings, labels, **memory.candidates(embeddings, labels, ids))
    assert pairs.positive.tolist() == [[False, False, False, True], [False, False, False, False]]
    assert pairs.negative.tolist() == [[False, True, False, False], [True, False, True, True]]


@pytest.mark.parametrize("pushes", [1, 3])  # before it is full, and after
def test_resumes(pushes):
    memories = [Memory(SIZE, batches.DIM).double() for _ in range(2)]
    for number in range(pushes):
        memories[0].push(*rows(number))
    memories[1].load_state_dict(memories[0].state_dict())
    for number in range(pushes, pushes + 2):
        for memory in memories:
            memory.push(*rows(number))
        given = [memory.candidates(*rows(8)) for memory in memories]
        assert given[0].keys() == given[1].keys()
        assert all(torch.equal(given[0][key], given[1][key]) for key in given[0])


def test_nothing_waits_for_the_device():
    """On the meta device reading a value fails: see test_cost."""
    memory = Memory(64, 8).to("meta")
    loss = losses.TopKPrecision(k=3)
    for _ in range(4):
        embeddings = torch.empty(24, 8, device="meta", requires_grad=True)
        labels = torch.empty(24, dtype=torch.long, device="meta")
        loss(embeddings, labels, **memory.candidates(embeddings, labels, labels)).backward()
        memory.push(embeddings, labels, labels)
    assert memory.used


def test_a_compiled_loss_reads_it_in_one_graph():
    torch.compiler.reset()
    memory, _ = filled()
    loss = losses.TopKPrecision(k=3)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for number in (7, 8):
        embeddings, labels, ids = rows(number)
        given = memory.candidates(embeddings, labels, ids)
        expected = loss(embeddings, labels, **given)
        torch.testing.assert_close(compiled(embeddings, labels, **given), expected)
        memory.push(embeddings, labels, ids)


def test_half_precision_embeddings():
    memory = Memory(2, 2)
    memory.push(torch.eye(2).bfloat16(), torch.arange(2), torch.arange(2))
    given = memory.candidates(torch.eye(2).bfloat16(), torch.arange(2), torch.arange(2))
    assert memory.embeddings.dtype == given["candidates"].dtype == torch.float32


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match=r"Memory\(size=0, dim=2, start=0\): size and dim must be positive"):
        Memory(0, 2)
    with pytest.raises(
        ValueError, match=r"memory\.size=50: there are 40 training images, so it would hold some"
    ):
        check_memory(losses.TopKPrecision(), 50, 40)
    with pytest.raises(RuntimeError, match="size mismatch"):
        nn.ModuleList([Memory(3, 2)]).load_state_dict(nn.ModuleList([Memory(4, 2)]).state_dict())
