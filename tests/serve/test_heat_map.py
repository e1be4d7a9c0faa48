"""Heat maps: the parts add up to the cosine where they should, and lie where the images agree."""

import numpy as np
import pytest
import torch
from PIL import Image

from firstpage.models.embedder import Embedder
from firstpage.serve.heat_map import compare_images, seen_region


def picture(seed, size=(96, 64)):
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


def shaken(**settings):
    """An embedder whose biases and batch norms are not those of an untrained one."""
    torch.manual_seed(1)
    model = Embedder.create(backbone="small", dim=16, stored=64, crop=64, **settings)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.1, 2)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    return model.eval()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"head": "none"},
        {"head": "multilevel"},
        {"standardize": True},
        {"head": "split", "learners": (6, 10)},
        {"head": "attention", "learners": (8, 8)},
    ],
    ids=["linear", "none", "multilevel", "standardize", "split", "attention"],
)
def test_with_average_pooling_the_parts_add_up_to_the_cosine(settings):
    model = shaken(**settings)
    one, two = picture(1), picture(2, (64, 80))
    maps = compare_images(model, one, two)
    vectors = model.embed([one, two], progress=False)
    cosine = float(vectors[0] @ vectors[1])
    assert maps.exact
    assert maps.score == pytest.approx(cosine, abs=1e-5)
    assert maps.query.sum().item() == pytest.approx(cosine, abs=1e-5)
    assert maps.result.sum().item() == pytest.approx(cosine, abs=1e-5)
    assert maps.query.std() > 0
    same = compare_images(model, one, one)
    assert same.query.sum().item() == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(same.query, same.result)


@pytest.mark.parametrize("pooling", ["max", "avg+max", "gem"])
@pytest.mark.parametrize("stages", [1, 3])
def test_homogeneous_pooling_without_bias_adds_up_by_gradients(pooling, stages):
    model = shaken(pooling=pooling, head="none", stages=stages)
    maps = compare_images(model, picture(1), picture(2))
    assert not maps.exact
    assert maps.query.sum().item() == pytest.approx(maps.score, abs=1e-3)
    assert maps.result.sum().item() == pytest.approx(maps.score, abs=1e-3)


def test_gradients_agree_with_the_exact_parts_where_both_hold(monkeypatch):
    model = shaken(head="none")
    exact = compare_images(model, picture(1), picture(2))
    monkeypatch.setattr("firstpage.serve.heat_map.is_exact", lambda model: False)
    other = compare_images(model, picture(1), picture(2))
    torch.testing.assert_close(other.query, exact.query)
    torch.testing.assert_close(other.result, exact.result)


@pytest.mark.parametrize(
    "settings",
    [
        {"head": "mlp"},
        {"layer_norm": True},
        {"head": "split", "learners": (6, 10), "pooling": "max"},
        {"stages": 3},
        {"stages": 2, "layer_norm": True, "pooling": "avg+max"},
    ],
)
def test_what_is_not_linear_is_not_called_exact(settings):
    maps = compare_images(shaken(**settings), picture(1), picture(2))
    assert not maps.exact
    assert maps.query.abs().sum() > 0


@pytest.mark.parametrize(("pooling", "stages"), [("cls", 1), ("cls", 3), ("avg", 1)])
def test_transformers_have_a_part_for_each_patch(pooling, stages):
    torch.manual_seed(0)
    model = Embedder.create(
        backbone="firstpage.models.backbones.vit:VisionTransformer",
        options={"width": 48, "heads": 3, "depth": 3, "size": 56},
        dim=8,
        stored=64,
        crop=(28, 42),
        pooling=pooling,
        stages=stages,
        resize="squash",
    )
    maps = compare_images(model.eval(), picture(1), picture(2))
    assert maps.query.shape == (2, 3)
    assert maps.exact == (pooling == "avg")
    assert maps.query.abs().min() > 0
    if maps.exact:
        assert maps.query.sum().item() == pytest.approx(maps.score, abs=1e-5)


def test_the_score_is_that_of_a_search_in_half_precision_too(monkeypatch):
    model, one, two = shaken(pooling="avg+max", stages=3, layer_norm=True), picture(1), picture(2)
    exact = compare_images(model, one, two).score
    monkeypatch.setattr("firstpage.serve.heat_map.use_half", lambda device: True)
    vectors = model.embed([one, two], half=True, progress=False)
    found = compare_images(model, one, two).score
    assert abs(found - float(vectors[0] @ vectors[1])) < abs(found - exact)


def test_no_gradient_is_left_behind():
    model = shaken(pooling="max")
    compare_images(model, picture(1), picture(2))
    assert all(weight.grad is None for weight in model.parameters())


def test_the_region_is_what_the_network_sees():
    """A mark in the corner of the region is in the corner of the network's input, whatever the framing."""
    for resize, size in (
        ("shorter", (200, 100)),
        ("shorter", (100, 400)),
        ("squash", (90, 70)),
        ("pad", (64, 32)),
    ):
        model = Embedder.create(backbone="small", dim=4, stored=64, crop=48, resize=resize)
        image = Image.new("RGB", size, "white")
        x0, y0, x1, y1 = seen_region(model, size)
        left, top = max(0, round(x0 * size[0])), max(0, round(y0 * size[1]))
        right, bottom = min(size[0], round(x1 * size[0])), min(size[1], round(y1 * size[1]))
        image.paste("black", (left, top, right, bottom))
        seen = model.prepare([image])[0, 0]
        middle = seen[:, seen.shape[1] // 2]
        inner = seen[4:-4, 4:-4] if resize != "pad" else seen[18:30, 4:-4]
        assert inner.max() < -1.5, (resize, size)  # black within the region
        image.paste("white", (left, top, right, bottom))
        outside = Image.new("RGB", size, "black")
        outside.paste("white", (left, top, right, bottom))
        assert model.prepare([outside])[0, 0][4:-4, 4:-4].min() > 1.5, (resize, size)
        assert middle.numel() == 48
