"""Health: figures against naive loops, the guard against NaN, and a collapse said in words."""

import functools
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from firstpage import losses
from firstpage.data import Catalog
from firstpage.errors import UserError
from firstpage.pairs import Pairs, unit
from firstpage.recipes import Recipe
from firstpage.runs.checkpoint import Checkpoints
from firstpage.training import fit, health, job, monitor, nonfinite, reproduce
from firstpage.training.compiling import compile_network
from firstpage.training.optimizer import gradients
from firstpage.training.seeding import seeded
from support.batches import sized

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def pairs_of(seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(12, 6, generator=generator) + 0.5
    return Pairs.of(
        vectors.to(device), (torch.arange(12) // 3).to(device), image_ids=torch.arange(12).to(device)
    )


def create(name):
    return losses.create(name, **sized(name, classes=4, dim=6))


def test_spread_and_collapse_are_means_over_pairs_of_different_images():
    pairs = pairs_of()
    vectors = unit(pairs.queries).tolist()
    cosines = [
        sum(a * b for a, b in zip(one, other, strict=True))
        for one, other in itertools.permutations(vectors, 2)
    ]
    figures = health.DeferredMetrics(health.step_health(losses.TopKPrecision(), pairs)).values()
    assert figures["spread"] == pytest.approx(1 - sum(cosines) / len(cosines), abs=1e-5)
    assert figures["collapse"] == pytest.approx(sum(c * c for c in cosines) / len(cosines), abs=1e-5)


@pytest.mark.parametrize(
    ("vectors", "spread", "collapse"),
    [
        (torch.ones(4, 8), 0.0, 1.0),  # a point
        (torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]) * torch.ones(8), 4 / 3, 1.0),  # a line
        (torch.eye(4, 8), 1.0, 0.0),
    ],
)
def test_a_point_and_a_line_are_collapsed(vectors, spread, collapse):
    figures = health.DeferredMetrics(
        health.step_health(losses.NCA(), Pairs.of(vectors, torch.tensor([0, 0, 1, 1])))
    ).values()
    assert (figures["spread"], figures["collapse"]) == pytest.approx((spread, collapse), abs=1e-5)


@pytest.mark.parametrize("margin", [0.01, 0.2])
def test_active_pairs_are_those_of_active_triplets(margin):
    pairs = pairs_of()
    active, moved = set(), set()
    s = pairs.similarity.tolist()
    for anchor, positive, negative in itertools.permutations(range(12), 3):
        same, other = anchor // 3 == positive // 3, anchor // 3 != negative // 3
        if same and other and s[anchor][negative] - s[anchor][positive] + margin > 0:
            active |= {(anchor, positive), (anchor, negative)}
            moved.add(anchor)
    loss = losses.Triplet("cosine", margin, "all", "all")
    figures = health.DeferredMetrics(health.step_health(loss, pairs)).values()
    assert figures["active_pairs"] == pytest.approx(len(active) / (12 * 11))
    assert figures["idle_anchors"] == pytest.approx(1 - len(moved) / 12)
    assert 0 < len(moved) <= 12


@pytest.mark.parametrize("name", losses.names())
def test_every_loss_is_measured_and_not_disturbed(name):
    loss, pairs = create(name), pairs_of()
    figures = health.DeferredMetrics(health.step_health(loss, pairs)).values()
    assert 0 <= figures["idle_anchors"] <= 1
    apart = isinstance(loss, losses.ProxyLoss) or name in ("npair", "spectral-clust")
    assert ("active_pairs" in figures) == (not apart)
    assert 0 < figures.get("active_pairs", 1) <= 1
    assert all(parameter.grad is None for parameter in loss.parameters())
    assert pairs.similarity.grad is None


def test_candidates_that_are_no_batch_are_measured_too():
    batch = pairs_of()
    memory = torch.randn(30, 6)
    pairs = Pairs.of(batch.queries, batch.labels, memory, torch.arange(30) % 4)
    figures = health.DeferredMetrics(health.step_health(losses.RankedList(), pairs)).values()
    cosine = unit(batch.queries) @ unit(memory).T
    assert figures["spread"] == pytest.approx(1 - float(cosine.mean()), abs=1e-5)
    assert 0 < figures["active_pairs"] <= 1


@pytest.mark.parametrize("name", [n for n in losses.names() if n != "struct-clust"])
def test_nothing_is_read_from_the_device(name):
    """A tensor on the meta device has no value to read: reading one raises."""
    figures = health.step_health(create(name).to("meta"), pairs_of(device="meta"))
    assert all(figure.device.type == "meta" for figure in figures.values())


@needs_gpu
def test_a_gpu_is_not_waited_for():
    place, pairs = torch.device("cuda"), pairs_of(device="cuda")
    loss, layer = create("margin").to(place), nn.Linear(6, 6).to(place)
    layer(pairs.queries).sum().backward()
    watched = nonfinite.NonFiniteGuard(None, None, place)
    torch.cuda.set_sync_debug_mode("error")
    try:
        watched.begin(0, [1])
        watched.expect_finite(pairs.queries)
        watched.end(loss.of(pairs), gradients([*layer.parameters(), *loss.parameters()]))
        with seeded(place, "loss", 0, 0):
            reading = health.DeferredMetrics(health.step_health(loss, pairs))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert watched.status.tolist() == [0, 1]
    assert 0 < reading.values()["active_pairs"] <= 1


def test_the_histogram_of_beta_counts_every_query():
    loss = losses.Margin(classes=4)
    with torch.no_grad():
        loss.beta_class.copy_(torch.tensor([-0.65, 0.05, 0.05, 3.0]))  # 3.0 is beyond the sphere
    figures = health.DeferredMetrics(health.step_health(loss, pairs_of())).values()
    expected = [0] * 20
    expected[5], expected[12], expected[19] = 3, 6, 3  # 0.55, 1.25 twice, 4.2
    assert figures["beta_histogram"] == expected
    assert figures["beta"] == pytest.approx((0.55 + 2 * 1.25 + 4.2) / 4)


class Squares:
    """Pixels that were never files: 8 classes, 6 images each."""

    def __init__(self):
        random = np.random.default_rng(1)
        self.pixels = torch.from_numpy(random.integers(0, 256, (48, 32, 32, 3), dtype=np.uint8))
        self.ok = np.ones(48, bool)
        labels = np.arange(48) // 6
        splits = {"train": np.flatnonzero(labels % 2), "test": np.flatnonzero(labels % 2 == 0)}
        names = [f"{row}.png" for row in range(48)]
        self.catalog = Catalog("squares", Path(), names, labels, list("abcdefgh"), splits)

    def __len__(self):
        return 48

    def batch(self, rows, device=None):
        return self.pixels[torch.as_tensor(rows)].to(device)


MARGIN = {"name": "margin", "classes": True}


def train(folder, *changes, device="cpu", loss=MARGIN):
    table = {
        "model": {"backbone": "small", "dim": 8, "stored": 32, "crop": 28},
        "loss": loss,
        "batch": {"size": 12, "images_per_class": 4},
        "augment": {"crop": "random"},
        "optimizer": {"lr": 1e-3},
        "schedule": {"epochs": 5, "kind": "constant"},
        "train": {"protocol": "paper", "evaluate_every": 5},
    }
    data = Squares()
    recipe = Recipe.of(table).changed(changes)
    return fit(recipe, data.catalog, folder, pixels=data, device=device, progress=False)


def test_health_is_in_the_log_and_does_not_change_the_run(tmp_path, monkeypatch):
    train(tmp_path / "alone")  # looks at the last step only
    monkeypatch.setattr(monitor, "LOG_EVERY", 2)
    train(tmp_path / "watched")
    alone, watched = (tmp_path / name / "last" / "model.safetensors" for name in ("alone", "watched"))
    assert alone.read_bytes() == watched.read_bytes()
    looks = [line for line in log(tmp_path / "watched") if "loss" in line]
    names = {"active_pairs", "idle_anchors", "spread", "collapse", "gradient_norm", "beta", "beta_histogram"}
    assert all(names <= set(line) for line in looks)
    assert [line["step"] for line in looks] == [2, 4, 6, 8, 10]
    assert all(line["gradient_norm"] > 0 for line in looks)


def look_later(monkeypatch, later=True):
    """The host looks at what the device has to tell some steps later, as with a GPU."""
    monkeypatch.setattr(job, "NonFiniteGuard", functools.partial(nonfinite.NonFiniteGuard, eager=not later))


def log(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_looks_that_are_read_a_step_later_log_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "LOG_EVERY", 3)
    for name in ("eager", "deferred"):
        with monkeypatch.context() as patch:
            look_later(patch, later=name == "deferred")
            train(tmp_path / name, "train.evaluate_steps=6", "schedule.kind=cosine")
    assert [line["step"] for line in log(tmp_path / "eager")] == [0, 3, 6, 6, 9, 10, 10]
    assert log(tmp_path / "deferred") == log(tmp_path / "eager")


def test_weights_that_blow_up_stop_the_run(tmp_path):
    with pytest.raises(
        nonfinite.NonFiniteError, match=r"^after step \d: NaN or infinity on images \d+, "
    ) as caught:
        train(tmp_path, "optimizer.lr=1e30")
    error = caught.value
    assert "\n" not in str(error)
    assert 1 <= error.step <= 3
    assert len(error.image_ids) == 12
    assert {row // 6 % 2 for row in error.image_ids} == {1}
    found = reproduce(error.snapshot)
    assert (found.step, found.image_ids) == (error.step, error.image_ids)
    assert found.paths == [f"{row}.png" for row in error.image_ids]
    assert found.where.startswith(("backbone.", "heads."))
    assert "first not finite: " in found.text()


@pytest.fixture
def _poisoned(monkeypatch):
    """The gradient of the loss with respect to the embeddings is NaN in the sixth step, its value is fine."""
    calls = [0]
    original = losses.Margin.forward

    def forward(self, embeddings, labels, **options):
        calls[0] += 1
        if calls[0] == 6:
            embeddings.register_hook(lambda gradient: gradient * math.nan)
        return original(self, embeddings, labels, **options)

    monkeypatch.setattr(losses.Margin, "forward", forward)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("way", ["eager", "deferred", pytest.param("gpu", marks=needs_gpu)])
@pytest.mark.parametrize(
    "changes",
    [
        ["optimizer.name=adamw"],
        ["optimizer.name=sgd", "memory.size=24", "batch.chunk=5"],  # used since the third step
    ],
)
def test_the_step_is_found_and_repeated_though_the_host_looks_later(tmp_path, monkeypatch, way, changes):
    """Deferred is how a GPU is guarded: the flag stays on the device, the fused optimizer heeds it."""
    losses_seen, original = [], nonfinite.NonFiniteGuard.end

    def end(self, loss, gradients):
        losses_seen.append(loss.item())
        original(self, loss, gradients)

    monkeypatch.setattr(nonfinite.NonFiniteGuard, "end", end)
    if way == "deferred":
        look_later(monkeypatch)
    with pytest.raises(nonfinite.NonFiniteError) as caught:
        train(tmp_path, *changes, device="cuda" if way == "gpu" else "cpu")
    assert caught.value.step == 5
    assert len(losses_seen) == (6 if way == "eager" else 10)
    found = reproduce(caught.value.snapshot, "cuda" if way == "gpu" else "cpu")
    # The poison is not in the snapshot, the step is: same images, weights and draws, so the same loss.
    assert found.loss == pytest.approx(losses_seen[5], rel=1e-3 if way == "gpu" else 0, abs=0)
    assert math.isfinite(found.gradient_norm)
    assert found.where is None


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_run_goes_on_though_it_looks_later_than_before(tmp_path, monkeypatch, name):
    """As if begun on a CPU and continued on a GPU, or stopped with a look unread."""
    monkeypatch.setattr(monitor, "LOG_EVERY", 2)
    # Two looks before the stop and one after it; evaluated at the end.
    changes = [f"optimizer.name={name}", "train.checkpoint_every=0", "schedule.epochs=3"]
    train(tmp_path / "whole", *changes)
    save = Checkpoints.save

    def stopping(self, step, state):
        save(self, step, state)
        if step == 4:
            raise KeyboardInterrupt

    for later in (False, True):
        folder = tmp_path / f"stopped {later}"
        with monkeypatch.context() as patch:
            if later:
                look_later(patch)
            patch.setattr(Checkpoints, "save", stopping)
            with pytest.raises(KeyboardInterrupt):
                train(folder, *changes)
        with monkeypatch.context() as patch:
            look_later(patch)
            train(folder, *changes)
        whole, stopped = log(tmp_path / "whole"), log(folder)
        assert [line["step"] for line in stopped] == [line["step"] for line in whole]
        assert stopped[-2]["loss"] == pytest.approx(whole[-2]["loss"], rel=1e-3)


@pytest.mark.usefixtures("_poisoned")
def test_a_bad_step_is_found_by_the_next_look(tmp_path, monkeypatch):
    """Steps 3 and 6 are looked at, and read after 4 and 7."""
    begun, begin = [], nonfinite.NonFiniteGuard.begin
    monkeypatch.setattr(
        nonfinite.NonFiniteGuard, "begin", lambda *given: (begun.append(given[1]), begin(*given))
    )
    monkeypatch.setattr(monitor, "LOG_EVERY", 3)
    look_later(monkeypatch)
    with pytest.raises(nonfinite.NonFiniteError) as caught:
        train(tmp_path)
    assert (caught.value.step, begun) == (5, list(range(7)))
    assert [line["step"] for line in log(tmp_path) if "loss" in line] == [3]


@needs_gpu
@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["train.ema=0.8", "memory.size=24", "model.standardize=true"],
        ["schedule.head_epochs=2", "model.head=multilevel"],
        ["batch.chunk=5"],
    ],
    ids=" ".join,
)
def test_a_recorded_step_is_the_eager_step(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(monitor, "LOG_EVERY", 1)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    given = ["train.precision=fp32", "optimizer.name=sgd", "optimizer.lr=0.0001", *changes]
    for name, how in (("eager", "train.compile=false"), ("recorded", "train.compile=true")):
        train(tmp_path / name, *given, how, device="cuda", loss={"name": "batch-all"})  # it draws no lots
    for eager, recorded in zip(log(tmp_path / "eager"), log(tmp_path / "recorded"), strict=True):
        for name in ("loss", "gradient_norm", "spread") if "loss" in eager else ():
            assert recorded[name] == pytest.approx(eager[name], rel=1e-3), (eager["step"], name)


@needs_gpu
def test_the_kernels_of_a_compiled_network_are_launched_together():
    """One graph for the forward pass, one for the backward pass, and no kernel outside of them."""
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten()).cuda()
    embed = compile_network(lambda images: (network(images),), torch.device("cuda"))
    images = torch.randn(4, 3, 16, 16, device="cuda")
    seed = torch.ones(4, 8 * 12 * 12, device="cuda")

    def step():
        network.zero_grad(set_to_none=True)
        embed(images)[0].backward(seed)

    for _ in range(4):  # warm up, record, replay
        step()
    with torch.profiler.profile(activities=[*torch.profiler.supported_activities()]) as profile:
        step()
        torch.cuda.synchronize()
    assert [event.name for event in profile.events()].count("cudaGraphLaunch") == 2


@needs_gpu
def test_a_recorded_dropout_draws_anew_each_step_and_again_for_the_same_step():
    place, network = torch.device("cuda"), nn.Sequential(nn.Linear(6, 64), nn.Dropout()).cuda()
    embed = compile_network(lambda images: (network(images),), place)
    images = torch.ones(4, 6, device=place)

    def drawn(step):
        network.zero_grad()
        with seeded(place, "dropout", step):
            (level,) = embed(images)
        level.sum().backward()
        return level.detach().clone()

    for step in range(4):  # warm up, record, replay
        drawn(step)
    first, second, again = drawn(0), drawn(1), drawn(0)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_without_a_folder_the_guard_says_how_to_get_a_snapshot():
    with pytest.raises(nonfinite.NonFiniteError, match="pass a run folder to save what reproduces it"):
        train(None, "optimizer.lr=1e30")


def test_verdicts_wait_for_the_look():
    watched = nonfinite.NonFiniteGuard(None, None, torch.device("cpu"), eager=False)
    for step in range(4):
        watched.begin(step, [step])
        watched.expect_finite(torch.zeros(3))
        watched.end(torch.tensor(math.nan if step == 2 else 1.0), [torch.ones(2)])
    assert watched.status.tolist() == [1, 2]


def test_a_collapsed_run_says_so_once_and_what_to_try(tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "LOG_EVERY", 1)
    monkeypatch.setattr(health.CollapseDetector, "THRESHOLD", 0.0)  # any run is collapsed then
    result = train(tmp_path)
    assert len(result.warnings) == 1
    assert result.warnings[0].startswith(
        "step 5: collapsed: all images have nearly the same embedding (mean cosine "
    )
    assert "try a lower optimizer.lr" in result.text()
    assert json.loads((tmp_path / "run.json").read_text())["result"]["warnings"] == result.warnings
    lines = log(tmp_path)
    assert [(line["step"], line["warning"]) for line in lines if "warning" in line] == [
        (5, result.warnings[0])
    ]


def test_a_recovery_is_logged_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "LOG_EVERY", 1)
    update = health.CollapseDetector.update

    def recover(self, step, metrics, last=False):
        return update(self, step, metrics | {"collapse": 0.99 if step < 7 else 0.5}, last)

    monkeypatch.setattr(health.CollapseDetector, "update", recover)
    train(tmp_path)
    told = [(line["step"], *line.keys() & {"warning", "recovery"}) for line in log(tmp_path)]
    assert [line for line in told if len(line) > 1] == [(5, "warning"), (7, "recovery")]


def collapsing(monkeypatch, collapsed):
    """Let the health of a run be that of a collapse in some steps."""
    monkeypatch.setattr(monitor, "LOG_EVERY", 1)
    update = health.CollapseDetector.update

    def pretend(self, step, metrics, last=False):
        return update(self, step, metrics | {"collapse": 0.99 if collapsed(step) else 0.5}, last)

    monkeypatch.setattr(health.CollapseDetector, "update", pretend)


@pytest.mark.parametrize(
    ("change", "which"),
    [
        ("train.evaluate_every=1", r"the model of epoch \d"),
        ("train.evaluate_every=100", "the untrained model"),  # none was evaluated yet
    ],
)
def test_a_collapse_is_mended_from_the_best_model_at_lower_rates(tmp_path, monkeypatch, change, which):
    restored = []
    mend = job.TrainJob.mend

    def watched(self):
        said = mend(self)
        weights, best = self.model.state_dict(), self.state.best_weights
        restored.append(all(torch.equal(weights[name], best[name]) for name in best))
        assert not self.optimizer.state
        return said

    monkeypatch.setattr(job.TrainJob, "mend", watched)
    collapsing(monkeypatch, lambda step: 1 < step < 7)
    result = train(tmp_path, "train.evaluate_untrained=false", change)
    assert restored == [True]
    assert re.fullmatch(
        rf"step \d: mended: {which} was restored, and goes on at 30% of the learning rates",
        result.warnings[1],
    )
    rates = {line["step"]: line["lr"] for line in log(tmp_path) if "lr" in line}
    assert rates[8] == pytest.approx(0.3 * rates[1])


def test_a_run_that_collapses_again_and_again_is_stopped(tmp_path, monkeypatch):
    collapsing(monkeypatch, lambda step: step > 1)
    monkeypatch.setattr(health.CollapseDetector, "IN_A_ROW", 2)
    with pytest.raises(
        UserError, match=r"collapsed 3 times, also at 9% of its learning rates: use loss.score"
    ):
        train(tmp_path)


def test_only_looks_in_a_row_count():
    watch = health.CollapseDetector()
    said = [
        watch.update(n, {"collapse": 0.5 if n in (4, 12, 14) else 0.99, "spread": 0.01}) for n in range(20)
    ]
    assert [step for step, words in enumerate(said) if words] == [9, 12, 19]
    assert said[12] == "step 12: no longer collapsed"
