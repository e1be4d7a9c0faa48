"""The compared systems (METHODS, §11) on a few glyphs: each of them learns."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from firstpage import recipes
from firstpage.data import glyphs as glyphs_module
from firstpage.data.framing import Framing
from firstpage.data.jpeg_store import open_store
from firstpage.models import Embedder
from firstpage.training import fit
from firstpage.training.job import TrainJob


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    """Pixels and catalog of 12 characters, 8 images each, to train on and to test on."""
    folder, points = tmp_path_factory.mktemp("glyphs"), glyphs_module._points()[:12]
    with pytest.MonkeyPatch.context() as patch:  # drawing all takes seconds
        patch.setattr(glyphs_module, "_points", lambda: points)
        whole = glyphs_module.draw_glyphs(folder / "glyphs", images=8)
    catalog = replace(whole, splits={"train": np.arange(len(whole)), "test": np.arange(len(whole))})
    model = RECIPE.model
    return open_store(catalog, folder / "cache", Framing(model.stored, model.resize), progress=False), catalog


RECIPE = recipes.find("glyphs").changed(
    [
        *("model.dim=32", "batch.size=32", "augment.crop=center", "optimizer.lr=3e-3"),
        *("schedule.epochs=8", "train.evaluate_every=8"),
    ]
)


def train(glyphs, *changes, folder=None):
    pixels, catalog = glyphs
    return fit(RECIPE.changed(changes), catalog, folder, device="cpu", pixels=pixels, progress=False)


def assert_learned(result):
    untrained, trained = (metrics["P@1"] for metrics in result.history)
    assert untrained < 30
    assert trained > 60


def test_htl_learns_with_the_tree_of_the_classes_it_has(glyphs, monkeypatch):
    trees, survey = [], TrainJob.survey

    def recording(self):
        survey(self)
        nearest = self.setup.sampler.state_dict()["nearest"]
        trees.append((self.state.step, self.setup.criteria[0].tree.thresholds.tolist(), nearest.tolist()))

    monkeypatch.setattr(TrainJob, "survey", recording)
    result = train(glyphs, "loss.name=htl", "batch.neighbors=3", "train.survey_every=3")
    assert_learned(result)
    steps, thresholds, nearest = zip(*trees, strict=True)
    assert steps == (0, 9, 18)  # epochs 1, 4 and 7
    assert 4 > thresholds[0][-2] > thresholds[0][0] > 0
    for values in (thresholds, nearest):
        assert values[0] != values[1] != values[2]


def test_pddm_learns_and_its_similarity_is_saved_with_the_best_model(glyphs, tmp_path):
    slowly = ("optimizer.loss=1.0", "schedule.epochs=16", "train.evaluate_every=16")
    result = train(glyphs, "loss.name=pddm", "model.rerank=true", *slowly, folder=tmp_path)
    assert_learned(result)
    pixels, catalog = glyphs
    model = Embedder.load(tmp_path)
    vectors = model.embed(pixels, progress=False)
    learned = model.pair_similarity.table(vectors, vectors).fill_diagonal_(-torch.inf)
    labels = torch.from_numpy(catalog.labels)
    right = (labels[learned.argmax(dim=1)] == labels).float().mean()
    assert right > 0.5  # what it orders by has learned too
    with pytest.raises(ValueError, match=r"model\.rerank=true: needs the loss pddm, and one head"):
        train(glyphs, "loss.name=htl", "model.rerank=true")
    with pytest.raises(ValueError, match=r"model\.rerank=true: needs the loss pddm, and one head"):
        train(glyphs, "loss.name=pddm", "model.rerank=true", "model.head=multilevel")
