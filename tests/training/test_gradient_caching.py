"""Chunks give the gradients of the whole batch: every loss, with dropout, augmentation and autocast."""

import pytest
import torch
from torch import nn

from firstpage.data.augment import Augment
from firstpage.models.backbones import freeze_batch_norm
from firstpage.models.embedder import Embedder
from firstpage.training.gradient_caching import backward
from firstpage.training.seeding import seeded
from support import steps


def cached(name, rows, chunk):
    network, criteria = steps.made(name)
    images, labels, ids = steps.batch(rows)
    seen = []

    def embed(place):
        seen.append(len(images[place]))
        return network(images[place])

    value = backward(
        network,
        embed,
        lambda levels: steps.total(criteria, levels, labels, image_ids=ids),
        [slice(0, rows)],
        chunk,
    )
    assert max(seen) <= chunk
    return value, steps.gradients(network, criteria)


@pytest.mark.parametrize("name", steps.LOSSES)
@pytest.mark.parametrize("chunk", [1, 4, 12])  # of 11 rows: single images, a shorter last chunk, all at once
def test_equals_the_plain_step(name, chunk):
    steps.assert_same(cached(name, 11, chunk), steps.plain(name, 11))


def test_gradients_are_added_to_those_that_are_there():
    network, criteria = steps.made("topk")
    images, labels, _ = steps.batch(8)
    for _ in range(2):
        backward(
            network,
            lambda at: network(images[at]),
            lambda levels: steps.total(criteria, levels, labels),
            [slice(0, 8)],
            3,
        )
    twice = steps.gradients(network)
    network, criteria = steps.made("topk")
    steps.total(criteria, network(images), labels).backward()
    for name, gradient in steps.gradients(network).items():
        torch.testing.assert_close(twice[name], 2 * gradient)


def test_dropout_is_replayed():
    """The reference keeps the graphs of all chunks, so it draws each mask once."""
    images, labels, _ = steps.batch(11)
    places = [slice(0, 4), slice(4, 8), slice(8, 11)]
    network, criteria = steps.made("ep", dropout=0.5)
    parts = []
    for place in places:
        with seeded(steps.CPU, "dropout", 7, 0, place.start):
            parts.append(network(images[place]))
    loss = steps.total(criteria, [torch.cat(level) for level in zip(*parts, strict=True)], labels)
    loss.backward()
    wanted = loss.detach(), steps.gradients(network, criteria)

    network, criteria = steps.made("ep", dropout=0.5)
    first = []

    def embed(place):
        levels = network(images[place])
        first.append(levels[0].detach())
        return levels

    value = backward(
        network,
        embed,
        lambda levels: steps.total(criteria, levels, labels),
        [slice(0, 11)],
        4,
        key=("dropout", 7),
    )
    steps.assert_same((value, steps.gradients(network, criteria)), wanted)
    for before, again in zip(first[:3], first[3:], strict=True):
        assert torch.equal(before, again)
    assert not torch.equal(first[0][0], first[1][0])


def test_draws_leave_the_state_alone_and_depend_on_the_key():
    before = torch.get_rng_state()
    drawn = []
    for key in (("loss", 1, 2), ("loss", 1, 2), ("loss", 1, 3), ("loss", 12)):
        with seeded(steps.CPU, *key):
            drawn.append(torch.rand(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])


@pytest.mark.parametrize("crop", ["random", "resized"])
def test_augmentation_is_that_of_the_whole_batch(crop):
    pixels = torch.randint(256, (10, 40, 40, 3), dtype=torch.uint8)
    augment = Augment.train(32, crop, jitter=(0.2, 0.2, 0.2, 0.1))
    whole = augment(pixels, seed=3, step=5)
    for place in (slice(0, 4), slice(4, 8), slice(8, 10)):
        torch.testing.assert_close(augment(pixels[place], seed=3, step=5, first=place.start), whole[place])


def test_an_embedder_of_pixels():
    """The whole way: stored pixels, augmented by the chunk, a network with frozen batch norms, two levels."""
    pixels, labels = torch.randint(256, (12, 36, 36, 3), dtype=torch.uint8), torch.arange(12) // 3
    augment = Augment.train(32, "resized")
    found = []
    for chunk in (0, 5):
        torch.manual_seed(0)
        model = Embedder.create(
            backbone="small", head="multilevel", dim=4, stored=36, crop=32, freeze_batch_norm=True
        )
        model.double().train()
        criteria = nn.ModuleList(steps.LOSSES["margin"]() for _ in range(3)).double()

        def embed(place, model=model):
            images = augment(pixels[place], seed=1, step=2, first=place.start)
            return model.raw(images.double())

        value = backward(
            model,
            embed,
            lambda levels, c=criteria: steps.total(c, levels, labels),
            [slice(0, len(pixels))],
            chunk,
        )
        found.append((value, steps.gradients(model, criteria)))
    assert found[0][1]["0.backbone.conv.weight"].abs().max() > 0
    steps.assert_same(found[1], found[0], 1e-7)


def test_autocast():
    """The casts of weights that autocast kept in the pass without a graph must not be used in the other."""
    images, labels, _ = steps.batch(12)
    found = []
    for chunk in (0, 4):
        network, criteria = steps.made("contrastive")
        network.float()

        def embed(place, network=network):
            with torch.autocast("cpu", torch.bfloat16):
                return network(images[place].float())

        value = backward(
            network, embed, lambda levels, c=criteria: steps.total(c, levels, labels), [slice(0, 12)], chunk
        )
        found.append((value, steps.gradients(network)))
    assert found[0][1]["0.heads.0.weight"].abs().max() > 0
    torch.testing.assert_close(found[1][0], found[0][0])
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient, rtol=0.02, atol=0.02 * gradient.abs().max())


def test_a_compiled_network():
    images, labels, _ = steps.batch(12)
    found = []
    for chunk in (0, 4):
        network, criteria = steps.made("topk")
        compiled = torch.compile(network, backend="aot_eager")
        value = backward(
            network,
            lambda at, compiled=compiled: compiled(images[at]),
            lambda levels, c=criteria: steps.total(c, levels, labels),
            [slice(0, 12)],
            chunk,
        )
        found.append((value, steps.gradients(network)))
    steps.assert_same(found[1], found[0])


@pytest.mark.parametrize("compiled", [False, True])
def test_batch_norms_count_every_image_once(compiled):
    images, labels, _ = steps.batch(12)
    network, criteria = steps.made("topk", batch_norm=True)
    through = torch.compile(network, backend="aot_eager") if compiled else network
    backward(
        network,
        lambda at: through(images[at]),
        lambda levels: steps.total(criteria, levels, labels),
        [slice(0, 12)],
        4,
    )
    other, _ = steps.made("topk", batch_norm=True)
    for place in (slice(0, 4), slice(4, 8), slice(8, 12)):
        other(images[place])
    assert network.norm.num_batches_tracked == 3
    for name, value in other.norm.state_dict().items():
        torch.testing.assert_close(network.norm.state_dict()[name], value)


def test_frozen_batch_norms_are_exact():
    images, labels, _ = steps.batch(11)
    found = []
    for chunk in (0, 4):
        network, criteria = steps.made("lifted", batch_norm=True)
        network.norm.running_mean.fill_(0.3)
        freeze_batch_norm(network)
        value = backward(
            network,
            lambda at, network=network: network(images[at]),
            lambda levels, c=criteria: steps.total(c, levels, labels),
            [slice(0, 11)],
            chunk,
        )
        found.append((value, steps.gradients(network)))
    steps.assert_same(found[1], found[0])


def test_a_level_the_loss_does_not_use_gets_no_push():
    images, labels, _ = steps.batch(8)
    network, criteria = steps.made("topk")
    backward(
        network,
        lambda at: network(images[at]),
        lambda levels: criteria[0](levels[0], labels),
        [slice(0, 8)],
        chunk=3,
    )
    assert network.heads[0].weight.grad.abs().max() > 0
    assert not network.heads[1].weight.grad.any()


def test_a_negative_chunk_is_refused():
    with pytest.raises(ValueError, match=r"batch\.chunk=-1: must not be negative; 0 embeds the whole batch"):
        backward(nn.Linear(2, 2), lambda at: (), lambda levels: torch.zeros(()), [slice(0, 4)], -1)
