"""The compared systems (METHODS, §11) on a few glyphs: each of them learns."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from firstpage import recipes
from firstpage.data import glyphs as glyphs_module
from firstpage.data.framing import Framing
from firstpage.data.jpeg_store import open_store
from firstpage.data.meta_classes import group_classes
from firstpage.evaluation import evaluate
from firstpage.models import Embedder, combine
from firstpage.runs import open_run
from firstpage.search import Index
from firstpage.training import fit, fit_members
from firstpage.training.job import TrainJob
from support.children import run_processes
from support.noise import Noise, noise_catalog
from support.system_oracles import is_random_partition

pytestmark = pytest.mark.usefixtures("one_thread")


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
        *("model.dim=32", "batch.size=32", "batch.images_per_class=4", "augment.crop=center"),
        "optimizer.lr=3e-3",
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


DREML = ("loss.name=proxy-nca", "train.members=3", "train.meta_classes=4", "model.dim=8", "schedule.epochs=4")


def train_members(glyphs, folder, *changes):
    pixels, catalog = glyphs
    recipe = RECIPE.changed([*DREML, *changes])
    return fit_members(recipe, catalog, folder, device="cpu", pixels=pixels, progress=False)


def train_noise(folder, lives=None):
    """Train an ensemble on noise, 2 steps a member; if asked for, be killed after `lives` steps."""
    torch.set_num_threads(1)
    steps, update = [0], TrainJob.update

    def counting(self, *arguments, **options):
        if steps[0] == lives:
            os.kill(os.getpid(), signal.SIGKILL)
        steps[0] += 1
        return update(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainJob, "update", counting)
        changes = ["batch.size=16", "schedule.epochs=1", "train.evaluate_every=1", "train.checkpoint_every=0"]
        recipe, pixels = RECIPE.changed([*DREML, *changes]), Noise(48)
        catalog = noise_catalog(48, 4, 32)
        fit_members(recipe, catalog, folder, device="cpu", pixels=pixels, progress=False)
    return steps[0]


def contents(folder):
    """All that must not depend on the clock."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "events" not in path.parts
    }
    for name in [name for name in found if name.endswith("run.json")]:
        found[name] = json.loads(found[name])
        del found[name]["result"]["seconds"], found[name]["result"]["images_per_second"]
    return found


def test_meta_classes_are_random_groups_of_classes_of_equal_size():
    labels = np.random.default_rng(0).integers(0, 11, 80)
    labels[:11] = np.arange(11)
    drawn = [group_classes(labels, 4, seed, member) for seed in range(3) for member in range(4)]
    assert all(is_random_partition(11, 4, labels.tolist(), groups.tolist()) for groups in drawn)
    assert len({tuple(groups) for groups in drawn}) == 12
    assert np.array_equal(drawn[5], group_classes(labels, 4, 1, 1))
    together = np.mean(
        [groups[0] == groups[1] for groups in (group_classes(labels, 4, n) for n in range(400))]
    )
    assert 0.1 < together < 0.35  # 2 of the 10 others, or fewer, share the group of a class
    for groups in (1, 12):
        with pytest.raises(ValueError, match=rf"train\.meta_classes={groups}: must be in 2\.\.11"):
            group_classes(labels, groups, 0)


@pytest.fixture(scope="module")
def ensemble(glyphs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensemble") / "run"
    return folder, train_members(glyphs, folder)


def test_dreml_learns_and_is_one_model(glyphs, ensemble, tmp_path):
    folder, result = ensemble
    pixels, catalog = glyphs
    members = [Embedder.load(folder / f"member-{number}") for number in range(3)]
    vectors = [model.embed(pixels, progress=False) for model in members]
    together = torch.nn.functional.normalize(torch.cat(vectors, dim=1))
    loaded = Embedder.load(folder)
    torch.testing.assert_close(loaded.embed(pixels, progress=False), together)
    labels = torch.from_numpy(catalog.labels)
    alone = [evaluate(one, labels).metrics()["P@1"] for one in vectors]
    measured = evaluate(together, labels).metrics()
    assert {name: result.best[name] for name in measured} == measured
    assert result.best["P@1"] > max(alone)
    opened = open_run(folder, catalog, device="cpu", cache=tmp_path, progress=False)
    assert opened.model.dim == 24
    index = Index.build(tmp_path / "index", loaded, catalog, vectors=together.numpy(), progress=False)
    assert len(index.search(ids=[0], k=3)[0]) == 3


def test_dreml_goes_on_where_it_was_killed_and_trains_no_member_again(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train_noise(whole) == 6
    assert run_processes(train_noise, (broken, 3)) == [-signal.SIGKILL]
    assert sorted(path.name for path in broken.glob("member-*")) == ["member-0", "member-1"]
    assert not (broken / "best").exists()
    assert train_noise(broken) == 3  # the second step of the second member, and the third member
    assert contents(broken) == contents(whole)
    assert train_noise(broken) == 0


def test_what_cannot_be_an_ensemble_leaves_nothing(glyphs, tmp_path):
    for change, complaint in (
        ("train.meta_classes=13", r"train\.meta_classes=13: must be in 2\.\.12"),
        ("loss.name=proxy-nac", r"did you mean 'proxy-nca'"),
    ):
        with pytest.raises(ValueError, match=complaint):
            train_members(glyphs, tmp_path / "run", change)
    assert not (tmp_path / "run").exists()
    models = [Embedder.create(backbone="small", dim=dim, stored=48) for dim in (4, 8)]
    with pytest.raises(
        ValueError, match=r"combine: got 2 models; give at least one, all of the same settings"
    ):
        combine(models)
    with pytest.raises(ValueError, match=r"train\.member=3: must be in 0\.\.2, below train\.members"):
        RECIPE.changed([*DREML, "train.member=3"])
