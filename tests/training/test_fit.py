"""fit: it learns, repeats itself to the last bit, and complains before it writes."""

import copy
import json
import re
import signal
import tomllib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from firstpage import cli, recipes, training
from firstpage.data import Catalog, read
from firstpage.data.framing import as_pair
from firstpage.data.splits import split_catalog
from firstpage.errors import UserError
from firstpage.models import Embedder, components
from firstpage.recipes import Recipe
from firstpage.runs import open_run
from firstpage.search import Index
from firstpage.training import display, duration, job, loop, timer
from firstpage.training.folds import summary
from firstpage.training.ranks import Ranks
from firstpage.training.result import Result
from firstpage.training.state import TrainState
from firstpage.training.stopping import Stopped
from support.striped import write_stripes

fit, fit_folds = partial(training.fit, device="cpu"), partial(training.fit_folds, device="cpu")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # two would wait for one another on a busy machine
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    """24 classes of striped squares, told apart by direction and width; the last eight are the test's."""
    root = tmp_path_factory.mktemp("stripes")
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:36, :36]
    paths, labels = [], []
    for label in range(24):
        angle, width = label * np.pi / 24, 0.5 + 0.25 * (label % 3)
        for number in range(8):
            wave = np.sin(width * (rows * np.sin(angle) + columns * np.cos(angle)) + random.uniform(0, 6))
            colors = np.array([[0], [170]]) + random.integers(0, 86, (2, 3))  # dark on bright: soon learned
            picture = np.where(wave[..., None] > 0, colors[0], colors[1]) + random.normal(0, 20, (36, 36, 3))
            paths.append(f"{label:02d}-{number}.png")
            labels.append(label)
            Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(root / paths[-1])
    labels = np.array(labels)
    splits = {"train": np.flatnonzero(labels % 3 < 2), "test": np.flatnonzero(labels % 3 == 2)}
    return Catalog("stripes", root, paths, labels, [str(c) for c in range(24)], splits)


LONG = ("schedule.epochs=6", "train.evaluate_every=2", "model.standardize=false")


def recipe(*changes):
    table = {
        "model": {"backbone": "small", "dim": 16, "stored": 36, "crop": 32, "standardize": True},
        "loss": {"name": "batch-all"},
        "batch": {"size": 32, "images_per_class": 4},
        "augment": {"crop": "random", "flip": 0.0},
        "optimizer": {"lr": 3e-3, "head": 1.0},
        "schedule": {"epochs": 2, "kind": "cosine"},
        "train": {"protocol": "paper"},
    }
    return Recipe.of(table).changed(changes)


@pytest.fixture(scope="module")
def run(stripes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    result = fit(recipe(*LONG), stripes, folder / "run", cache=folder / "cache", progress=False)
    return folder, result


def test_it_learns_and_keeps_the_best(run, stripes):
    folder, result = run
    assert result.test["P@1"] >= result.history[0]["P@1"] + 30
    assert result.test["P@1"] == max(figures["P@1"] for figures in result.history)
    saved = Embedder.load(folder / "run")
    rows = stripes.splits["test"]
    again = saved.embed([stripes.path(row) for row in rows], progress=False)
    torch.testing.assert_close(again, result.model.embed([stripes.path(row) for row in rows], progress=False))


def test_images_are_cut_to_their_boxes_where_data_has_them(stripes, tmp_path):
    # In the frame around each square are stripes of any class.
    random = np.random.default_rng(1)
    for row, path in enumerate(stripes.paths):
        frame = Image.open(stripes.path(int(random.integers(len(stripes))))).resize((108, 108))
        frame.paste(Image.open(stripes.path(row)), (60, 12))
        frame.save(tmp_path / path)
    boxes = np.tile(np.float32([60, 12, 96, 48]), (len(stripes), 1))
    framed = replace(stripes, root=tmp_path, boxes=boxes)
    short = ["schedule.epochs=1", "model.boxes=true"]
    train = partial(fit, cache=tmp_path / "cache", progress=False)
    cut = train(recipe(*short), framed, tmp_path / "run")
    assert cut.test == train(recipe(*short), replace(stripes, boxes=boxes * 0 + [0, 0, 36, 36])).test
    assert cut.test != train(recipe("schedule.epochs=1"), framed).test
    opened = open_run(tmp_path / "run", data=framed, cache=tmp_path / "cache", progress=False)
    torch.testing.assert_close(
        opened.embed(np.arange(8)), cut.model.embed([stripes.path(row) for row in range(8)], progress=False)
    )
    with pytest.raises(UserError, match=r"'stripes' has no boxes; use boxes=False, in a recipe model\.boxes"):
        train(recipe(*short), stripes)
    # Other data, such as that of an index, need have none.
    index = Index.build(tmp_path / "index", opened.model, stripes, cache=tmp_path / "cache", progress=False)
    assert len(index) == len(stripes)


def test_the_run_folder_tells_what_ran(run):
    folder = run[0] / "run"
    about = json.loads((folder / "run.json").read_text())
    assert Recipe.read(folder / "recipe.toml") == recipe(*LONG)
    assert about["result"]["test"] == run[1].test
    assert {"firstpage", "git", "torch", "python", "data"} <= set(about)
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in log if "P@1" in line] == [0, 2, 4, 6]
    assert any("loss" in line for line in log)
    assert {path.name for path in folder.iterdir()} >= {"best", "last"}


def test_what_ran_runs_again_to_the_same_numbers(run, stripes, tmp_path):
    short = partial(fit, catalog=stripes, cache=run[0] / "cache", progress=False)
    first = short(recipe("schedule.epochs=3", "train.evaluate_every=2"), folder=tmp_path / "run")
    again = short(Recipe.read(tmp_path / "run" / "recipe.toml"), folder=None)
    assert again.history == first.history
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, first.model.state_dict()[name]), name


@pytest.mark.parametrize(
    "changes",
    [
        ["model.head=multilevel", "loss.name=rll"],
        ["model.head=pca", "model.layer_norm=true"],
        ["train.ema=0.9", "optimizer.clip=1.0", "optimizer.name=sgd"],
        ["loss.name=proxy-nca", "schedule.head_epochs=1"],
        ["loss.name=margin", "loss.classes=true", "loss.images=true", "model.freeze_batch_norm=true"],
        ["batch.oversample=true", "batch.images_per_class=10", "loss.name=epshn"],
        ["schedule.kind=step", "schedule.warmup=1", "optimizer.name=adam"],
    ],
)
def test_every_kind_of_run_ends_with_figures(run, stripes, changes):
    result = fit(recipe(*changes), stripes, None, cache=run[0] / "cache", progress=False)
    assert 0 <= result.test["P@1"] <= 100
    assert len(result.history) == 3


def test_a_run_that_was_stopped_while_its_head_started_starts_it_again(run, stripes, tmp_path, monkeypatch):
    given = recipe("model.head=pca", "schedule.epochs=1")

    def stop(*_, **__):
        raise Stopped("stopped", signal.SIGTERM)

    monkeypatch.setattr(job, "start_at_components", stop)
    with pytest.raises(Stopped):
        fit(given, stripes, tmp_path, cache=run[0] / "cache", progress=False)
    monkeypatch.undo()
    resumed = fit(given, stripes, tmp_path, cache=run[0] / "cache", progress=False)
    unbroken = fit(given, stripes, None, cache=run[0] / "cache", progress=False)
    assert resumed.history == unbroken.history


def test_principal_components_are_of_some_images_where_there_are_many(run, stripes, monkeypatch):
    monkeypatch.setattr(components, "MOST_IMAGES", 60)
    seen, inputs = [], Embedder.inputs
    recording = lambda self, images, rows, *rest: (seen.append(rows), inputs(self, images, rows, *rest))[1]  # noqa: E731
    monkeypatch.setattr(Embedder, "inputs", recording)
    changes = ["model.head=pca", "schedule.epochs=0", "train.seed=3"]
    fit(recipe(*changes), stripes, None, cache=run[0] / "cache", progress=False)
    rows = seen[0]
    assert len(set(rows)) == 60
    assert set(rows) <= set(stripes.splits["train"])


def test_the_backbone_waits_while_the_head_warms_up(run, stripes, tmp_path):
    changes = ["schedule.epochs=2", "schedule.head_epochs=1", "model.freeze_batch_norm=true"]
    torch.manual_seed(0)
    untrained = Embedder(recipe(*changes).model)
    for epochs in (1, 2):
        given = recipe(*changes, f"schedule.epochs={epochs}")
        fit(given, stripes, tmp_path / str(epochs), cache=run[0] / "cache", progress=False)
        last = Embedder.load(tmp_path / str(epochs) / "last")
        moved = {
            part: not torch.equal(mine, other)
            for (part, mine), other in zip(last.named_parameters(), untrained.parameters(), strict=True)
            if part.endswith("weight") and mine.ndim > 1
        }
        assert all(moved[part] == (epochs == 2 or part.startswith("heads.")) for part in moved)


def test_a_head_of_principal_components_begins_with_those_of_the_training_images(run, stripes, monkeypatch):
    jobs, start = [], job.TrainJob._start_head
    monkeypatch.setattr(
        job.TrainJob, "_start_head", lambda self, *rest: (start(self, *rest), jobs.append(self))
    )
    changes = [
        "model.head=pca",
        "model.dim=5",
        "model.standardize=false",
        "schedule.epochs=0",
        "train.ema=0.9",
    ]
    began = fit(recipe(*changes), stripes, None, cache=run[0] / "cache", progress=False).model
    features = Embedder(replace(recipe(*changes).model, head="none"))
    features.backbone.load_state_dict(began.backbone.state_dict())
    images = [stripes.path(row) for row in stripes.splits["train"]]
    with torch.inference_mode():
        values = np.concatenate(
            [features.eval().raw(part)[0] for part in features.inputs(images, np.arange(len(images)))]
        ).astype(np.float64)
    _, _, components = np.linalg.svd(values - values.mean(0), full_matrices=False)
    weight, bias = (value.detach().numpy() for value in began.heads[0][-1].parameters())
    np.testing.assert_allclose(np.abs((weight * components[:5]).sum(1)), 1, atol=1e-4)
    np.testing.assert_allclose(bias, -weight @ values.mean(0), atol=1e-4)
    for model in (jobs[0].model, jobs[0].eval_model):  # and so does what a collapse is mended with
        for name, value in model.heads.state_dict().items():
            assert torch.equal(value, jobs[0].state.best_weights[f"heads.{name}"])


def test_the_average_of_the_weights_is_what_is_kept(run, stripes, tmp_path, monkeypatch):
    models, make = [], job.make_optimizer

    def recording(settings, model, criteria):
        optimizer = make(settings, model, criteria)
        models.append(copy.deepcopy(model.state_dict()))
        optimizer.register_step_post_hook(lambda *_: models.append(copy.deepcopy(model.state_dict())))
        return optimizer

    monkeypatch.setattr(job, "make_optimizer", recording)
    fit(recipe("train.ema=0.75"), stripes, tmp_path / "run", cache=run[0] / "cache", progress=False)
    last = Embedder.load(tmp_path / "run" / "last").state_dict()
    assert len(models) > 4
    for name, mean in models[0].items():
        for model in models[1:]:
            mean = 0.75 * mean + 0.25 * model[name] if mean.is_floating_point() else model[name]
        torch.testing.assert_close(last[name], mean)


def test_the_best_model_is_in_its_folder_whatever_a_killed_run_left_there(
    run, stripes, tmp_path, monkeypatch
):
    scribbled = []

    def evaluated(self, epoch, figures):
        if epoch:  # the untrained model stays the best
            scribbled.append((tmp_path / "run" / "best" / "model.safetensors").write_bytes(b"another"))

    monkeypatch.setattr(loop.Display, "show_evaluation", evaluated)
    changes = recipe("optimizer.lr=1e-12")
    result = fit(changes, stripes, tmp_path / "run", cache=run[0] / "cache", progress=False)
    assert scribbled
    best = Embedder.load(tmp_path / "run").state_dict()
    assert all(torch.equal(best[name], value) for name, value in result.model.state_dict().items())


def test_evaluations_are_not_time_spent_in_steps(run, stripes, monkeypatch):
    now, measure = [0.0], Ranks.evaluate

    def slow(*arguments):
        now[0] += 1000
        return measure(*arguments)

    def tick():
        now[0] += 1e-3
        return now[0]

    monkeypatch.setattr(timer.time, "perf_counter", tick)
    monkeypatch.setattr(Ranks, "evaluate", slow)
    result = fit(recipe("train.checkpoint_every=0"), stripes, None, cache=run[0] / "cache", progress=False)
    assert 0 < result.seconds < 1000


def test_evaluations_have_the_precision_of_the_steps(run, stripes, monkeypatch):
    asked, embed = [], Embedder.embed

    def spy(self, *arguments, half=None, **options):
        asked.append(half)
        return embed(self, *arguments, half=half, **options)

    monkeypatch.setattr(Embedder, "embed", spy)
    for precision in ("fp32", "bf16"):
        changes = recipe(f"train.precision={precision}", "schedule.epochs=1")
        result = fit(changes, stripes, None, cache=run[0] / "cache", progress=False)
        assert 0 <= result.test["P@1"] <= 100
    assert asked == [False, False, True, True]


@pytest.mark.parametrize("chunk", [0, 10])
def test_images_may_be_decoded_as_they_are_needed(stripes, run, chunk):
    """Without a store, ahead of the steps, a run ends as with one; JPEGs are nearly as good."""
    kinds = ("raw", "none") if chunk else ("raw", "none", "jpeg")
    # JPEGs have to learn something, and reading ahead to come to a second epoch; chunks are of a step.
    epochs = 1 if chunk else 2
    changes = [f"schedule.epochs={epochs}", f"batch.chunk={chunk}", "train.evaluate_untrained=false"]
    results = {
        kind: fit(
            recipe(*changes, f"train.store={kind}"), stripes, None, cache=run[0] / "cache", progress=False
        )
        for kind in kinds
    }
    weights = {kind: result.model.state_dict() for kind, result in results.items()}
    assert all(torch.equal(weights["raw"][name], weights["none"][name]) for name in weights["raw"])
    if "jpeg" in kinds:
        assert not all(torch.equal(weights["raw"][name], weights["jpeg"][name]) for name in weights["raw"])
        assert results["jpeg"].test["P@1"] > 30


def test_frozen_batch_norms_take_no_gradient(run, stripes, monkeypatch):
    seen = []
    original = torch.optim.AdamW.step

    def step(self, *arguments, **options):
        seen.append(True)
        return original(self, *arguments, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    model = fit(
        recipe("schedule.epochs=1", "model.freeze_batch_norm=true"),
        stripes,
        None,
        cache=run[0] / "cache",
        progress=False,
    ).model
    norms = [m for m in model.backbone.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert seen
    assert norms
    assert all(p.grad is None and not p.requires_grad for norm in norms for p in norm.parameters())


@pytest.mark.parametrize("changes", [[], ["train.evaluate_untrained=false"], ["train.evaluate_steps=5"]])
def test_the_estimate_counts_the_evaluations_that_are_made(run, stripes, capsys, monkeypatch, changes):
    monkeypatch.setitem(duration.PROBE, "cpu", 0.0)
    result = fit(recipe(*changes), stripes, None, cache=run[0] / "cache")
    assert f", {len(result.history)} evaluations" in capsys.readouterr().err


@pytest.fixture
def estimated(run, stripes, monkeypatch):
    """Give a function something to do with the job of a run before its first step, and return the result."""

    def estimate(look, *changes):
        found = []

        def stop(job):
            found.append(look(job))
            raise InterruptedError  # the training itself is not looked at

        monkeypatch.setattr(loop, "estimate_duration", stop)
        with pytest.raises(InterruptedError):
            fit(recipe("schedule.epochs=2", *changes), stripes, None, cache=run[0] / "cache")
        return found[0]

    return estimate


def test_a_compiled_network_is_used_when_its_backbone_is_trained(estimated):
    def look(job):
        calls, images, labels = [], torch.randn(8, 3, 32, 32), torch.arange(8) // 2
        job.step._network = lambda batch: calls.append(epoch) or job.model.raw(batch)  # in place of it
        for epoch in (1, 2):
            job.begin_epoch(epoch)
            job.step(lambda rows: images[rows], labels, torch.arange(8), step=0)
            trained = [value.grad is not None for value in job.model.backbone.parameters()]
            assert all(trained) if epoch == 2 else not any(trained)
        return calls

    assert estimated(look, "schedule.head_epochs=1") == [2]


def draw_a_number(module, arguments):
    """Do as dropout does."""
    torch.rand(1)


@pytest.mark.parametrize("changes", [["batch.chunk=7"], ["schedule.head_epochs=1", "augment.size=24"]])
def test_an_estimate_changes_nothing(estimated, monkeypatch, changes):
    monkeypatch.setitem(duration.PROBE, "cpu", 0.0)

    def look(job):
        draw = job.model.backbone.register_forward_pre_hook(draw_a_number)
        job.model.train()
        before = {name: value.clone() for name, value in job.model.state_dict().items()}
        state = torch.get_rng_state()
        duration.estimate_duration(job)
        draw.remove()
        assert job.model.training
        assert all(torch.equal(value, before[name]) for name, value in job.model.state_dict().items())
        assert all(value.grad is None for value in job.model.parameters())
        assert torch.equal(torch.get_rng_state(), state)

    estimated(look, *changes)


@pytest.mark.parametrize(
    ("changes", "ranks", "forwards", "both"),
    [  # of an epoch: passes of a rank's share forward alone, and forward and backward
        ([], 1, [0, 0], [1, 1]),
        (["schedule.head_epochs=1"], 1, [1, 0], [0, 1]),
        (["batch.chunk=5"], 1, [1, 1], [1, 1]),
        (["batch.chunk=5", "schedule.head_epochs=1"], 1, [2, 1], [0, 1]),
        (["batch.chunk=1000"], 1, [0, 0], [1, 1]),
        (["augment.size=24"], 4, [0, 0], [1, 1]),
    ],
)
def test_an_estimate_is_the_sum_of_its_passes(estimated, monkeypatch, changes, ranks, forwards, both):
    largest = []

    def pass_seconds(job, images, backward):
        largest.append(len(images))
        pixels = images[:, 0].numel()
        return pixels * (1e-3 if backward else 1e-6)

    monkeypatch.setattr(duration, "_pass_seconds", pass_seconds)

    def look(job):
        alone, job.ranks = job.ranks, replace(job.ranks, world_size=ranks)
        measured, job.ranks = duration.expected_seconds(job), alone
        split, side = job.setup.split, as_pair(job.setup.augment.size)[0]
        share = -(-job.recipe.batch.images // ranks)
        steps = len(job.setup.sampler)
        training = share * steps * side**2 * (1e-6 * sum(forwards) + 1e-3 * sum(both))
        evaluations = job.count_evaluations(job.steps) * split.validation.size / ranks
        expected = training + evaluations * 1e-6 * as_pair(job.model.preprocess.size)[0] ** 2
        return measured, expected, share

    measured, expected, share = estimated(look, *changes)
    assert measured == pytest.approx(expected)
    assert max(largest) <= share


def test_the_pace_is_shown_from_the_first_step_and_without_evaluations(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    with display.Display(3, show=True) as shown:
        for step in (1, 2):
            with shown.evaluating(10):
                clock[0] += 1000.0
            clock[0] += 40.0
            shown.step(step, images=128)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step")]
    assert lines == ["step 1/3  3.2 images/s  1.3 min left", "step 2/3  3.2 images/s  40 s left"]


def test_without_a_terminal_what_comes_before_the_steps_shows_its_pace_too(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    with display.Display(3, show=True) as shown:
        with shown.evaluating(4000, "computing features") as advance:
            for seconds, images in ((20.0, 500), (20.0, 500), (20.0, 2000)):
                clock[0] += seconds
                advance(images)
        clock[0] += 15.0  # the first step, which is slower than others
        shown.step(1, images=128)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.endswith("left")]
    assert lines == ["computing features: 1,000/4,000 images  2 min left"]


def test_a_baseline_has_no_row_of_a_trained_model(run, stripes):
    result = fit(recipe("schedule.epochs=0"), stripes, None, cache=run[0] / "cache", progress=False)
    assert result.seconds == 0
    assert [line.split()[0] for line in result.text().splitlines()] == ["P@1", "untrained"]


def test_early_stopping(run, stripes):
    changes = ["schedule.epochs=6", "train.patience=1", "optimizer.lr=1e-12"]
    result = fit(recipe(*changes), stripes, None, cache=run[0] / "cache", progress=False)
    assert len(result.history) < 7


def test_the_fair_protocol_selects_without_the_test_classes(run, stripes, monkeypatch):
    asked = []
    original = Ranks.evaluate

    def evaluate(self, model, pixels, labels, test, *more):
        asked.append(set(labels[test.queries]))
        return original(self, model, pixels, labels, test, *more)

    monkeypatch.setattr(Ranks, "evaluate", evaluate)
    result = fit(
        recipe("train.protocol=fair", "train.folds=4"), stripes, None, cache=run[0] / "cache", progress=False
    )
    tested = set(stripes.labels[stripes.splits["test"]])
    # Untrained: both; after each of two epochs: the held-out classes; at the end: the test.
    assert [bool(classes & tested) for classes in asked] == [False, True, False, False, True]
    assert asked[-1] == tested
    assert result.test != result.best


def test_all_folds_train_one_after_the_other_and_are_averaged(run, stripes, tmp_path):
    fair = recipe("train.protocol=fair", "train.folds=3", "schedule.epochs=1")
    results = fit_folds(fair, stripes, tmp_path / "folds", cache=run[0] / "cache", progress=False)
    assert [result.folder.name for result in results] == ["fold-0", "fold-1", "fold-2"]
    assert len({tuple(result.best.items()) for result in results}) == 3  # each held other classes out
    lines = summary(results).splitlines()
    assert lines[6:] == [f"model in {tmp_path / 'folds' / f'fold-{fold}' / 'best'}" for fold in range(3)]
    tests = np.array([result.test["P@1"] for result in results])
    half = 4.302653 * tests.std(ddof=1) / 3**0.5  # t with two degrees of freedom, from a table
    assert float(lines[4].split()[1]) == pytest.approx(tests.mean(), abs=0.051)
    assert float(lines[5].split()[3]) == pytest.approx(half, abs=0.051)


def test_a_val_split_is_what_models_are_selected_by(run, stripes):
    labels = stripes.labels
    splits = {
        "train": np.flatnonzero(labels % 3 == 0),
        "val": np.flatnonzero(labels % 3 == 1),
        "test": np.flatnonzero(labels % 3 == 2),
    }
    catalog = replace(stripes, splits=splits)
    roles = split_catalog(catalog, labels != 1, recipe("train.protocol=fair").train)
    assert set(labels[roles.train]) == {c for c in range(24) if c % 3 == 0}
    assert set(labels[roles.validation.queries]) == {c for c in range(2, 24) if c % 3 == 1}
    assert set(labels[roles.test.queries]) == {c for c in range(24) if c % 3 == 2}
    assert roles.summary(catalog) == (
        "stripes: training on 64 images of 8 classes, selecting on 56 of 7, testing on 64 of 8"
    )
    with pytest.raises(ValueError, match="the data has a val split, so there are no folds to select by"):
        fit_folds(recipe("train.protocol=fair"), catalog)


def test_folds_that_the_classes_do_not_give_are_refused_before_the_first(stripes, monkeypatch):
    monkeypatch.setattr("firstpage.training.folds.fit", lambda *_, **__: pytest.fail("trained"))
    few = replace(stripes, splits={"train": stripes.splits["train"][:48], "test": stripes.splits["test"]})
    with pytest.raises(ValueError, match=r"train.fold=3: 6 training classes give 3 folds of two or more"):
        fit_folds(recipe("train.protocol=fair", "batch.size=8"), few)


def test_of_equal_evaluations_the_better_list_is_kept():
    model = Embedder.create(backbone="small", dim=4, stored=36)
    state = TrainState({"model": model})
    kept = [
        state.add_evaluation(epoch, {"P@1": first, "MAP@R": whole}, model)
        for epoch, (first, whole) in enumerate([(80.0, 50.0), (80.0, 60.0), (80.0, 60.0), (79.0, 90.0)])
    ]
    assert kept == [True, True, False, False]


def test_the_table_of_a_fair_run_says_which_classes_its_figures_are_of():
    figures = [{"P@1": 60.0}, {"P@1": 62.0}, {"P@1": 55.0}]
    fair = Result(None, figures[1], figures[2], 3, figures[:2], 12.3, 1000, untrained={"P@1": 51.0})
    assert fair.text().splitlines() == [
        "                         P@1",
        "selection, untrained    60.0",
        "selection, trained      62.0",
        "test, untrained         51.0",
        "test, trained           55.0",
        "best at epoch 3; 12 s, 1,000 images/s",
    ]
    paper = Result(None, figures[0], figures[0], 0, figures[:1], 1.25)
    assert paper.text().splitlines() == [
        "              P@1",
        "untrained    60.0",
        "trained      60.0",
        "best at epoch 0; 1.2 s",
        "no epoch was better than the untrained network, so that is the model that was kept",
        "what may help: pretrained weights (model.weights), more images of each class, a lower optimizer.lr",
    ]
    worse = replace(fair, untrained={"P@1": 56.0}).text().splitlines()
    assert worse[-2:] == [
        "in the test it is worse than the untrained network: training did not help",
        paper.text().splitlines()[-1],
    ]


def test_images_that_cannot_be_read_are_told(stripes, tmp_path, capsys):
    for path in stripes.paths:
        (tmp_path / "images" / path).parent.mkdir(exist_ok=True)
        (tmp_path / "images" / path).write_bytes(stripes.path(stripes.paths.index(path)).read_bytes())
    (tmp_path / "images" / stripes.paths[1]).write_bytes(b"no image")
    catalog = replace(stripes, root=tmp_path / "images")
    fit(recipe("schedule.epochs=1"), catalog, tmp_path / "run", cache=tmp_path / "cache")
    told = "1 of 192 images cannot be read, such as 00-1.png; firstpage data check lists the reasons"
    shown = " ".join(capsys.readouterr().err.split())
    assert told in shown
    assert "stripes: training on 127 images of 16 classes, testing on 64 of 8" in shown
    assert json.loads((tmp_path / "run" / "run.json").read_text())["result"]["warnings"] == [told]
    (tmp_path / "run" / "log.jsonl").unlink()
    again = fit(recipe("schedule.epochs=1"), catalog, tmp_path / "run", cache=tmp_path / "cache")
    assert told in again.text()  # though its curves are lost


def test_a_folder_of_other_things_is_left_alone_before_anything_is_decoded(stripes, tmp_path):
    (tmp_path / "photo.jpg").touch()
    for place, complaint in (
        (tmp_path, "contains other files, such as 'photo.jpg': choose another --out"),
        (tmp_path / "photo.jpg", "is a file, not a folder: choose another path"),
    ):
        with pytest.raises(ValueError, match=complaint):
            fit(recipe(), stripes, place, cache=tmp_path / "cache", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_a_fair_run_shows_its_test_though_the_figures_are_equal():
    figures = [{"P@1": 100.0}, {"P@1": 100.0}]
    assert "test, trained          100.0" in Result(None, *figures, 3, figures[:1]).text()


def test_the_only_cpu_may_be_numbered(run, stripes):
    result = fit(recipe("schedule.epochs=1"), stripes, device="cpu:0", cache=run[0] / "cache", progress=False)
    assert result.history


def test_data_must_be_named(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "cub-topk"])
    assert (end.value.code, capsys.readouterr().err[:26]) == (2, "firstpage: --data: name th")


def test_a_recipe_is_shown_with_all_its_settings(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["recipe", "glyphs", "--set", "loss.k=7"])
    assert end.value.code == 0
    shown = Recipe.of(tomllib.loads(capsys.readouterr().out))
    assert shown == recipes.find("glyphs").changed(["loss.k=7"])


def test_folds_hold_out_every_training_class_once(stripes):
    held = []
    for fold in range(4):
        settings = recipe("train.protocol=fair", "train.folds=4", f"train.fold={fold}").train
        roles = split_catalog(stripes, np.ones(len(stripes), bool), settings)
        assert not set(stripes.labels[roles.train]) & set(stripes.labels[roles.validation.queries])
        held += sorted(set(stripes.labels[roles.validation.queries]))
    assert sorted(held) == sorted(set(stripes.labels[stripes.splits["train"]]))


def test_wrong_runs_are_one_line_with_code_2_and_write_nothing(stripes, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    folder = stripes.root
    table = tmp_path / "stripes.csv"
    lines = [
        f"{folder / p},{c},{'test' if c % 3 == 2 else 'train'}"
        for p, c in zip(stripes.paths, stripes.labels, strict=True)
    ]
    table.write_text("path,label,split\n" + "\n".join(lines))
    cases = {
        "--set=model.backbone=resnet5": "did you mean",
        "--set=loss.name=topkk": "did you mean 'topk'",
        "--set=batch.size=4096": "batch size 4096 with 11 images per class: the 12 classes give only 96 "
        "images; use at most 96 (--set batch.size=96)",
        "--device=cuda": "torch sees no GPU",
        "--set=loss.name=margin --set=loss.classes=3": "loss.classes=3: the data has 12",
        "--set=loss.name=margin --set=loss.classes=many": "classes='many': must be a whole number",
        "--set=model.weights=nowhere.safetensors": "nowhere.safetensors",
    }
    if torch.cuda.is_available():
        del cases["--device=cuda"]
    small = ["--set=model.stored=36", "--set=model.crop=32", "--set=batch.size=32"]
    for options, complaint in cases.items():
        first = [] if "backbone" in options else ["--set=model.backbone=small"]
        command = ["train", f"--data={table}", f"--out={tmp_path / 'out'}", *small, *first, *options.split()]
        with pytest.raises(SystemExit) as end:
            cli.main(command)
        error = capsys.readouterr().err
        assert end.value.code == 2, options
        assert complaint in error, (options, error)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("test", "complaint"),
    [([16], "of 1 class"), (range(16, 24), "no test image has another image of its class")],
)
def test_a_test_that_cannot_be_measured_is_told_before_anything_is_written(
    stripes, tmp_path, test, complaint
):
    rows = np.flatnonzero(np.isin(stripes.labels, list(test)))
    if len(rows) > 8:
        rows = rows[::8]  # one image of each class
    splits = {"train": stripes.splits["train"], "test": rows}
    catalog = Catalog("stripes", stripes.root, stripes.paths, stripes.labels, stripes.classes, splits)
    with pytest.raises(ValueError, match=complaint):
        fit(recipe(), catalog, tmp_path / "out", cache=tmp_path / "cache", progress=False)
    assert not list(tmp_path.iterdir())


def test_train_embed_and_export_from_the_command_line(tmp_path, capsys, monkeypatch, stripes):
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    for row in range(0, len(stripes), 2):
        target = tmp_path / "photos" / stripes.classes[stripes.labels[row]] / stripes.paths[row]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(stripes.path(row).read_bytes())
    (tmp_path / "mine.toml").write_text(recipe("schedule.epochs=1").toml())
    commands = [
        ["train", str(tmp_path / "mine.toml"), f"--data={tmp_path / 'photos'}", f"--out={tmp_path / 'run'}"],
        ["embed", str(tmp_path / "run"), str(tmp_path / "photos"), str(tmp_path / "vectors.npz")],
    ]
    for command in commands:
        with pytest.raises(SystemExit) as end:
            cli.main(command)
        assert end.value.code == 0
    out = capsys.readouterr().out
    assert "untrained" in out
    assert "wrote 96 embeddings of 16 dimensions" in out
    found = np.load(tmp_path / "vectors.npz")
    assert found["embeddings"].shape == (96, 16)
    assert len(found["paths"]) == len(found["labels"]) == 96


def test_the_batch_size_that_a_refusal_names_is_accepted_although_an_image_is_broken(tmp_path):
    write_stripes(tmp_path / "data", list("abcdefgh"), 3, np.random.default_rng(0), 0)
    for name in "abcdefgh":
        (tmp_path / "data" / name / "0.png").write_bytes(b"broken")
    settings = {"cache": tmp_path / "cache", "progress": False}
    changes = ["batch.size=128", "train.protocol=fair", "schedule.epochs=0"]
    with pytest.raises(ValueError, match=r"--set batch\.size=\d+") as error:
        fit(recipe(*changes), read(tmp_path / "data"), **settings)
    size = re.search(r"batch\.size=\d+", str(error.value))[0]
    assert fit(recipe(*changes, size), read(tmp_path / "data"), **settings).test is not None
