"""A run that is killed, at any moment, ends as if it had not been."""

import errno
import json
import os
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from firstpage import cli, durable, training
from firstpage.data import Catalog
from firstpage.models import Embedder
from firstpage.recipes import Recipe
from firstpage.runs.checkpoint import Checkpoints, read_state, write_state
from firstpage.runs.folder import RunFolder
from firstpage.training import fit, monitor
from firstpage.training.defaults import complete_recipe
from firstpage.training.health import CollapseDetector
from firstpage.training.job import TrainJob
from firstpage.training.stopping import Stopped, StopSignals
from support.children import run_processes


class Noise:
    """Pixels that were never files: 12 classes, 8 images each."""

    def __init__(self):
        random = np.random.default_rng(0)
        classes = random.integers(0, 256, (12, 1, 6, 6, 3))
        images = (classes + random.normal(0, 40, (12, 8, 6, 6, 3))).clip(0, 255).astype(np.uint8)
        self.pixels = torch.from_numpy(images).reshape(96, 6, 6, 3)
        self.pixels = self.pixels.repeat_interleave(3, 1).repeat_interleave(3, 2)
        self.ok = np.ones(96, bool)

    def __len__(self):
        return 96

    def batch(self, rows, device=None):
        return self.pixels[torch.as_tensor(rows)]

    def catalog(self):
        labels = np.arange(96) // 8
        splits = {"train": np.flatnonzero(labels < 8), "test": np.flatnonzero(labels >= 8)}
        return Catalog(
            "noise", Path(), [f"{row}.png" for row in range(96)], labels, list("abcdefghijkl"), splits
        )


RECIPES = {  # each has another kind of state to lose
    "margin": [
        "loss.name=margin",
        "loss.classes=true",
        "model.head=multilevel",
        "memory.size=32",
        "batch.chunk=8",
        "train.ema=0.8",
        "schedule.head_epochs=1",
    ],
    "proxies": ["loss.name=proxy-nca", "optimizer.name=sgd", "optimizer.clip=0.5", "batch.chunk=8"],
    "htl": ["loss.name=htl", "batch.neighbors=1", "train.survey_every=2"],
    "pddm": ["loss.name=pddm", "model.rerank=true", "train.ema=0.8"],
    # it stops after step 6; a head that began with the components of the images goes on as it was
    "patience": ["optimizer.lr=1e-12", "train.evaluate_steps=3", "train.patience=2", "model.head=pca"],
    "head": ["schedule.head_epochs=3", "model.head=pca"],
    "cascade": [
        "schedule.epochs=2",
        "model.head=multilevel",
        "model.dim=9",
        "model.learners=[3, 3, 3]",
        "loss.name=first-page",
        "ensemble.rule=cascade",
    ],
    "boost": [
        "schedule.epochs=2",
        "model.head=split",
        "model.learners=[3, 5]",
        "loss.name=binomial",
        "ensemble.rule=boost",
        "ensemble.diversity=adversarial",
        "memory.size=32",
        "batch.chunk=8",
    ],
    "attention": [
        "schedule.epochs=2",
        "model.head=attention",
        "model.learners=[4, 4]",
        "loss.name=contrastive",
        "ensemble.diversity=divergence",
    ],
}


def recipe(*changes):
    table = {
        "model": {"backbone": "small", "dim": 8, "stored": 18, "crop": 16, "standardize": True},
        "batch": {"size": 16, "images_per_class": 4},
        "augment": {"crop": "random"},
        "optimizer": {"lr": 3e-3},
        "schedule": {"epochs": 3, "kind": "cosine"},
        "train": {"protocol": "paper", "evaluate_every": 2, "checkpoint_every": 60.0},
    }
    return Recipe.of(table).changed(changes)


def train(folder, *changes):
    torch.set_num_threads(1)
    monitor.LOG_EVERY = 3
    CollapseDetector.THRESHOLD, CollapseDetector.IN_A_ROW = (
        -1.0,
        2,
    )  # every run says that it has collapsed, at step 6
    data = Noise()
    return fit(recipe(*changes), data.catalog(), folder, pixels=data, device="cpu", progress=False)


def train_until(folder, changes, name, calls):
    """Train in a process that kills itself at a certain call of a function, before it is carried out."""
    owner = os if hasattr(os, name) else getattr(torch.optim, name)
    name = name if owner is os else "step"
    original, left = getattr(owner, name), [calls]

    def deadly(*arguments, **options):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(owner, name, deadly)
    steps = [0]

    def every_third_step(self):
        steps[0] += 1
        return steps[0] % 3 == 0

    Checkpoints.is_due = every_third_step
    train(folder, *changes)


def child(target, *arguments):
    (code,) = run_processes(target, arguments)
    return code


def contents(folder):
    """All that must not depend on the clock."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "events" not in path.parts:
            found[str(path.relative_to(folder))] = path.read_bytes()
    about = json.loads(found["run.json"])
    del about["result"]["seconds"], about["result"]["images_per_second"]
    return found | {"run.json": about}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Each kind of run, left alone."""
    before = torch.get_num_threads(), monitor.LOG_EVERY, CollapseDetector.THRESHOLD, CollapseDetector.IN_A_ROW
    folder = tmp_path_factory.mktemp("unbroken")
    found = {}
    for name, changes in RECIPES.items():
        result = train(folder / name, *changes)
        found[name] = (folder / name, result, contents(folder / name))
    yield found
    torch.set_num_threads(before[0])
    monitor.LOG_EVERY, CollapseDetector.THRESHOLD, CollapseDetector.IN_A_ROW = before[1:]


@pytest.mark.parametrize(
    ("name", "deaths"),
    [
        # in a step, and again after going on; while a checkpoint is on its way to the disk
        ("margin", [("AdamW", 5), ("AdamW", 4), ("fsync", 5)]),
        # before the first checkpoint; between a checkpoint's being whole and having its name
        ("proxies", [("SGD", 2), ("replace", 6), ("SGD", 8)]),
        # after the tree was built, before and after it is built again
        ("htl", [("AdamW", 6), ("AdamW", 8)]),
        # with parameters that belong to the loss and to the model
        ("pddm", [("AdamW", 5)]),
        # after an evaluation that was no better
        ("patience", [("AdamW", 5)]),
        # on features that are computed again
        ("head", [("AdamW", 5)]),
        ("cascade", [("AdamW", 5)]),
        ("boost", [("AdamW", 5)]),
        ("attention", [("AdamW", 5)]),
    ],
)
def test_a_killed_run_ends_in_the_same_bytes(unbroken, tmp_path, name, deaths):
    for function, calls in deaths:
        code = child(train_until, tmp_path / "run", RECIPES[name], function, calls)
        assert code == -signal.SIGKILL
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert "last" not in written
    assert "checkpoint" in written
    train(tmp_path / "run", *RECIPES[name])
    assert contents(tmp_path / "run") == unbroken[name][2]


@pytest.fixture(scope="module")
def dead(tmp_path_factory):
    """Return what copies a run that was killed before a step, two steps after a checkpoint."""
    folder = tmp_path_factory.mktemp("dead")
    for name, step in (("margin", 9), ("patience", 5)):
        assert child(train_until, folder / name, RECIPES[name], "AdamW", step) == -signal.SIGKILL
    return lambda name, to: shutil.copytree(folder / name, to, dirs_exist_ok=True)


@pytest.fixture
def _signalled(monkeypatch, request):
    """Signals reach the process in its fifth step; no checkpoint would be due for an hour."""
    steps, step = [0], torch.optim.AdamW.step

    def signalled(*arguments):
        steps[0] += 1
        for number in request.param if steps[0] == 5 else ():
            os.kill(os.getpid(), number)
        return step(*arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", signalled)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_signalled")
@pytest.mark.parametrize("_signalled", [[signal.SIGINT], [signal.SIGTERM]], indirect=True)
def test_a_run_that_is_asked_to_stop_keeps_its_step_and_goes_on(unbroken, tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped, match=r"^stopped after step 5: run it again to resume$"):
        train(tmp_path, *RECIPES["margin"])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    train(tmp_path, *RECIPES["margin"])
    assert contents(tmp_path) == unbroken["margin"][2]


@pytest.fixture
def _signalled_in_evaluation(monkeypatch, request):
    """A signal reaches the process within an evaluation; no checkpoint would be due for an hour."""
    number, calls, embed, make = request.param, [0], Embedder.embed, Checkpoints.__init__

    def signalled(*arguments, **options):
        calls[0] += 1
        if calls[0] == number:
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("the evaluation goes on")
        return embed(*arguments, **options)

    monkeypatch.setattr(Embedder, "embed", signalled)
    monkeypatch.setattr(Checkpoints, "__init__", lambda self, folder, minutes: make(self, folder, 60.0))


FAIR = ("train.protocol=fair", "train.folds=2", "train.fold=1")  # tests at the start and at the end


@pytest.fixture(scope="module")
def unbroken_fair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fair")
    train(folder, *FAIR)
    return contents(folder)


@pytest.mark.usefixtures("_signalled_in_evaluation", "unbroken")
@pytest.mark.parametrize(
    ("_signalled_in_evaluation", "step"),
    [(1, 0), (2, 0), (3, 4), (4, 6), (5, 6)],
    indirect=["_signalled_in_evaluation"],
    ids=["untrained", "untrained-test", "between-epochs", "last-epoch", "test"],
)
def test_an_evaluation_stops_at_once_and_is_made_by_the_next_call(unbroken_fair, tmp_path, step):
    with pytest.raises(Stopped, match=rf"^stopped after step {step}: run it again to resume$"):
        train(tmp_path, *FAIR)
    train(tmp_path, *FAIR)
    assert contents(tmp_path) == unbroken_fair


@pytest.mark.usefixtures("unbroken")
def test_a_run_that_ended_early_is_not_trained_on_after_its_test_was_stopped(tmp_path, monkeypatch):
    calls = []

    def equally_good(*_):
        calls.append(None)
        if len(calls) == 3:  # the test, after an evaluation that was no better
            signal.raise_signal(signal.SIGINT)
        return {"P@1": 50.0}

    monkeypatch.setattr(TrainJob, "evaluate", equally_good)
    early = ("train.evaluate_untrained=false", "train.evaluate_steps=2", "train.patience=1")
    with pytest.raises(Stopped, match="after step 4"):
        train(tmp_path, *FAIR, *early)
    assert [line["epoch"] for line in train(tmp_path, *FAIR, *early).history] == [1, 2]
    assert len(calls) == 4


@pytest.mark.usefixtures("_signalled", "unbroken")
@pytest.mark.parametrize("_signalled", [[signal.SIGINT]], indirect=True)
def test_a_signal_within_a_step_does_not_wait_for_the_evaluation_after_it(tmp_path):
    with pytest.raises(Stopped):
        train(tmp_path / "run", "train.evaluate_steps=5")
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert not [line for line in map(json.loads, lines) if line["step"] == 5 and "P@1" in line]
    train(tmp_path / "run", "train.evaluate_steps=5")
    train(tmp_path / "unbroken", "train.evaluate_steps=5")
    assert contents(tmp_path / "run") == contents(tmp_path / "unbroken")


@pytest.mark.usefixtures("_signalled", "unbroken")
@pytest.mark.parametrize("_signalled", [[signal.SIGINT, signal.SIGINT]], indirect=True)
@pytest.mark.parametrize("again", [0.0, 60.0])
def test_who_asks_again_later_does_not_wait(tmp_path, monkeypatch, again):
    monkeypatch.setattr(StopSignals, "SECOND_SIGNAL", again)
    with pytest.raises(KeyboardInterrupt) as caught:
        train(tmp_path, *RECIPES["patience"])
    assert caught.type is (Stopped if again else KeyboardInterrupt)


@pytest.mark.parametrize("name", ["patience", "margin"])
def test_a_run_that_is_asked_to_stop_at_its_end_comes_to_it(unbroken, tmp_path, monkeypatch, name):
    save = Embedder.save

    def signalled(self, folder):
        if Path(folder).name == "last":
            os.kill(os.getpid(), signal.SIGTERM)
        return save(self, folder)

    monkeypatch.setattr(Embedder, "save", signalled)
    with pytest.raises(Stopped, match="is finished"):
        train(tmp_path, *RECIPES[name])
    assert contents(tmp_path) == unbroken[name][2]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (Stopped("stopped after step 5: run it again to resume", signal.SIGTERM), 143, None),
        (KeyboardInterrupt(), 130, "stopped: run it again to go on"),  # while images are decoded, say
    ],
    ids=["SIGTERM", "Ctrl-C"],
)
@pytest.mark.parametrize("command", ["train", "baseline"])
def test_a_stopped_command_says_how_to_go_on(monkeypatch, capsys, command, error, code, line):
    def stopped(*_, **__):
        raise error

    monkeypatch.setattr(training, "fit", stopped)
    monkeypatch.setattr("firstpage.runs.run_data.read_data", lambda *_: Noise().catalog())  # nothing is drawn
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--data", "glyphs", "--set", "model.backbone=small"])
    assert end.value.code == code
    assert capsys.readouterr().err == f"firstpage: {line or error}\n"


def test_a_kill_inside_a_write_leaves_half_a_file_and_harms_nothing(unbroken, tmp_path):
    # Two fsyncs (of the file, of its folder) each: recipe, run.json, weights and config; then the log's own.
    assert child(train_until, tmp_path, RECIPES["margin"], "fsync", 4 * 2 + 1 + 1) == -signal.SIGKILL
    (part,) = (tmp_path / "checkpoint").glob("*.part")
    assert part.name.startswith(".step-000000003.safetensors.")
    train(tmp_path, *RECIPES["margin"])
    assert contents(tmp_path) == unbroken["margin"][2]


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(unbroken, dead, tmp_path, how):
    dead("margin", tmp_path)
    newest = sorted((tmp_path / "checkpoint").glob("step-*"))[-1]
    data = bytearray(newest.read_bytes())
    data[-1] ^= 4
    newest.write_bytes(data[: len(data) // 2] if how == "cut" else data)
    with pytest.warns(UserWarning, match="step-000000006.safetensors is damaged"):
        train(tmp_path, *RECIPES["margin"])
    assert contents(tmp_path) == unbroken["margin"][2]


def test_without_a_sound_checkpoint_it_starts_anew(unbroken, dead, tmp_path):
    dead("patience", tmp_path)
    (path,) = (tmp_path / "checkpoint").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="step-000000003.safetensors is damaged: .*: starting over"):
        train(tmp_path, *RECIPES["patience"])
    assert contents(tmp_path) == unbroken["patience"][2]


@pytest.mark.parametrize("part", ["memories", "model"])
def test_a_checkpoint_of_another_version_is_left_alone(dead, tmp_path, part):
    dead("patience", tmp_path)
    (path,) = (tmp_path / "checkpoint").iterdir()
    state = read_state(path)
    state["parts"][f"old-{part}"] = state["parts"].pop(part)
    if part == "model":
        state["parts"]["model"] = {"weight": torch.ones(1)}
    write_state(path, state)
    with pytest.raises(ValueError, match=r"checkpoint: does not fit: .*: choose another --out, or") as caught:
        train(tmp_path, *RECIPES["patience"])
    assert "\n" not in str(caught.value)
    assert path.exists()


def test_the_evaluations_of_a_run_fall_where_they_should(unbroken):
    lines = [json.loads(line) for line in (unbroken["patience"][0] / "log.jsonl").read_text().splitlines()]
    assert [(line["step"], line["epoch"]) for line in lines if "P@1" in line] == [(0, 0), (3, 1), (6, 2)]


def test_two_processes_do_not_share_a_folder(unbroken, tmp_path, monkeypatch):
    monkeypatch.setattr("firstpage.runs.folder.LOCK_TIMEOUT", 0.2)
    catalog = Noise().catalog()
    chosen = complete_recipe(recipe(*RECIPES["patience"]), catalog)
    with RunFolder(tmp_path) as other:
        other.lock(chosen, catalog)
        with pytest.raises(
            ValueError, match=r": another process is training in it: wait for its end, or choose"
        ):
            train(tmp_path, *RECIPES["patience"])
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    train(tmp_path, *RECIPES["patience"])
    assert contents(tmp_path) == unbroken["patience"][2]
    with RunFolder(tmp_path) as late, pytest.raises(ValueError, match="another process has just finished it"):
        late.lock(chosen, catalog)  # as one that began to wait before that end
    assert contents(tmp_path) == unbroken["patience"][2]


def test_a_finished_run_is_read_and_not_run_again(unbroken, monkeypatch):
    folder, first, before = unbroken["proxies"]
    monkeypatch.setattr(torch.optim.SGD, "step", lambda *_: pytest.fail("trained again"))
    (folder / "checkpoint").mkdir()  # as if killed after its last word
    again = train(folder, *RECIPES["proxies"])
    assert contents(folder) == before
    assert not (folder / "checkpoint").exists()
    assert (again.best, again.test, again.epoch, again.history) == (
        first.best,
        first.test,
        first.epoch,
        first.history,
    )
    assert "was already finished; choose another folder" in again.text()
    for name, value in first.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)


def test_a_folder_of_another_run_is_left_alone(unbroken):
    folder, _, before = unbroken["margin"]
    with pytest.raises(
        ValueError, match=r"contains a run with train.ema=0.8, not 0.0: nothing was changed; "
    ):
        train(folder, *RECIPES["margin"], "train.ema=0.0")
    other = Noise().catalog()
    other.labels[0] = 3
    with pytest.raises(
        ValueError, match=r"contains a run on other data, 'noise' with 96 images in .*: nothing was changed"
    ):
        fit(recipe(*RECIPES["margin"]), other, folder, pixels=Noise(), device="cpu", progress=False)
    assert contents(folder) == before


def test_a_folder_of_another_version_is_left_alone(tmp_path):
    with RunFolder(tmp_path) as run:
        run.begin(recipe(), Noise().catalog(), "cpu")
    written = tmp_path / "recipe.toml"
    written.write_text(written.read_text().replace("[train]", "[train]\nforgotten = 3"))
    with pytest.raises(ValueError, match=r"of another version of firstpage \(.*: train.forgotten: no such"):
        train(tmp_path)


def test_a_full_disk_keeps_the_last_checkpoint(unbroken, tmp_path, monkeypatch):
    original, steps = durable.write, []

    def full(path, data):
        if "step-" in path.name:
            steps.append(path)
            if len(steps) == 6:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(path, data)

    monkeypatch.setattr(durable, "write", full)
    monkeypatch.setattr(Checkpoints, "is_due", lambda self: True)
    complaint = r"No space left on device: step 5 is saved; free some space and run it again"
    with pytest.raises(OSError, match=complaint) as caught:
        train(tmp_path, *RECIPES["margin"])
    assert "\n" not in str(caught.value)
    train(tmp_path, *RECIPES["margin"])
    assert contents(tmp_path) == unbroken["margin"][2]


def _with_little_room(folder, changes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # a model fits, a checkpoint does not
    Checkpoints.is_due = lambda self: True
    try:
        train(folder, *changes)
    except OSError as error:
        (folder / "said").write_text(str(error))
        raise SystemExit(2) from None


def test_a_file_that_may_not_grow_stops_the_run_in_one_line(unbroken, tmp_path):
    assert child(_with_little_room, tmp_path, RECIPES["margin"]) == 2
    assert "File too large: no checkpoint was due yet; free some space" in (tmp_path / "said").read_text()
    assert not list(tmp_path.rglob("*.part"))
    (tmp_path / "said").unlink()
    train(tmp_path, *RECIPES["margin"])
    assert contents(tmp_path) == unbroken["margin"][2]


@pytest.mark.usefixtures("unbroken")
def test_tensorboard_forgets_what_came_after_the_checkpoint(dead, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    dead("margin", tmp_path)  # after step 8, at which it had evaluated
    train(tmp_path, *RECIPES["margin"])
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    seen = events.EventAccumulator(str(tmp_path / "events"), {"histograms": 0})
    seen.Reload()
    for name in ("loss", "gradient_norm", "P@1"):
        expected = [(line["step"], line[name]) for line in log if name in line]
        points = [(point.step, point.value) for point in seen.Scalars(name)]
        assert [step for step, _ in points] == [step for step, _ in expected]
        assert [value for _, value in points] == pytest.approx([value for _, value in expected])
    assert len(seen.Histograms("beta_histogram")) == len([line for line in log if "beta" in line])
