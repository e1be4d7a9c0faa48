"""Ensembles of learners: they learn, are saved and loaded; what does not fit is named."""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from firstpage import recipes
from firstpage.data.catalog import Catalog
from firstpage.models import backbones
from firstpage.models.embedder import Embedder
from firstpage.recipes import Recipe
from firstpage.training import fit
from support.ensemble_steps import SMALL, SYSTEMS, small

glyphs = importlib.import_module("firstpage.data.glyphs")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """Eight letters, twelve drawings each, and where their pixels are cached."""
    folder = tmp_path_factory.mktemp("letters")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glyphs, "_TRAIN", {"latin": "41-48"})
        patch.setattr(glyphs, "_TEST", {"greek": "3B1-3B2"})
        catalog = glyphs.draw_glyphs(folder / "glyphs", images=12)
    rows = catalog.splits["train"]
    return replace(catalog, splits={"train": rows, "test": rows}), folder / "cache"


@pytest.mark.parametrize(
    ("name", "changes", "least"),
    [
        ("hdc", [], 8),
        ("bier", ["ensemble.diversity=adversarial", "ensemble.weight=0.01"], 25),
        ("abe", [], 25),
        ("bier", ["loss.name=topk", "loss.k=3", "loss.margin=0.3", "loss.score=log"], 25),
    ],
    ids=["hdc", "a-bier", "abe", "bier-topk"],
)
def test_it_learns(letters, name, changes, least):
    """In 36 steps from random weights: enough to tell the letters that it has seen apart."""
    catalog, cache = letters
    result = fit(small(name, *changes), catalog, None, cache=cache, device="cpu", progress=False)
    assert result.test["P@1"] >= result.history[0]["P@1"] + least
    assert result.model.dim == 24


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_model_is_saved_and_loaded(name, tmp_path):
    model = Embedder(small(name).model).eval()
    images = torch.randn(3, 3, 32, 32)
    again = Embedder.load(model.save(tmp_path))
    vectors = model(images)
    assert torch.equal(again(images), vectors)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))
    levels = model.raw(images)
    lengths = [part.norm(dim=1) for part in vectors.split(list(model.level_dims), dim=1)]
    for level, length, dim in zip(levels, lengths, model.level_dims, strict=True):
        torch.testing.assert_close(length / lengths[0], torch.full((3,), dim / model.level_dims[0]))
        assert level.shape == (3, dim)


@pytest.mark.parametrize("backbone", ["resnet18", "googlenet", "inception_bn"])
def test_stages_are_the_parts_of_a_network(backbone):
    network = backbones.create(backbone).eval()
    images = torch.randn(1, 3, 64, 64)
    low, middle, high = network.stages(images)
    assert torch.equal(network.high_stage(middle), high)
    assert [part.shape[1] for part in (low, middle, high)] == list(network.widths)


def test_masks_start_at_one_and_differ():
    model = Embedder(small("abe").model).eval()
    features = torch.rand(2, 96, 4, 4)
    masked = model.attention(features).view(3, 2, 96, 4, 4)
    torch.testing.assert_close(masked, features.expand_as(masked), rtol=0.5, atol=0.1)
    assert not torch.allclose(masked[0], masked[1], atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"head": "split"}, r"model.learners=\[\]: give the dimensions of 2 to 64 learners"),
        ({"head": "split", "learners": [4, 5], "dim": 8}, r"learners=\[4, 5\]: add up to 9: set model.dim=9"),
        ({"learners": [4, 4], "dim": 8}, "model.head='linear' is one learner: set model.learners="),
        ({"head": "multilevel", "learners": [4, 4], "dim": 8}, "a multilevel head has three"),
        ({"head": "attention", "learners": [3, 5], "dim": 8}, "give them one size"),
        ({"head": "split", "learners": [9, -1], "dim": 8}, "give the dimensions of 2 to 64 learners"),
    ],
)
def test_learners_that_do_not_fit_are_named(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        Recipe.of({"model": changes})


def test_what_an_ensemble_cannot_use_is_named():
    vit = {"backbone": "vit_small_14", "head": "attention", "learners": (4, 4), "dim": 8, "crop": 224}
    with pytest.raises(ValueError, match="vit_small_14 cannot be continued from its middle stage"):
        Embedder.create(**vit)
    names = [str(number) for number in range(20)]
    catalog = Catalog("x", Path(), names, np.arange(20) // 2, names[:10], {})
    for setting in ("ensemble.rule=boost", "ensemble.diversity=activation"):
        with pytest.raises(ValueError, match=r"the model has one learner: set model\.head=split"):
            fit(Recipe.of(SMALL).changed([setting, "batch.size=8"]), catalog, None, progress=False)
    assert recipes.baseline("cub-bier").model.learners == ()
