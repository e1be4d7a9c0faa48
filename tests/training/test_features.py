"""A run that trains only a head: the features of its images are those of the network, computed once."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from firstpage import training
from firstpage.data import read
from firstpage.data.augment import Augment
from firstpage.errors import UserError
from firstpage.evaluation import evaluate
from firstpage.models import Embedder
from firstpage.training import duration, features, loop, monitor, reproduce
from firstpage.training.features import CROPS, FeatureStore, uses_features
from firstpage.training.nonfinite import NonFiniteError
from support.noise import Noise
from support.striped import small_recipe, write_stripes

fit = partial(training.fit, device="cpu", progress=False)
TRAINED, TESTED = np.array([1, 4, 5, 9]), np.array([0, 4, 7])
RANDOM = Augment(16, "resized", scale=(0.3, 1.0), flip=0.5)
HEAD_ONLY = ("schedule.epochs=6", "schedule.head_epochs=6", "train.evaluate_every=3")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _small_files(monkeypatch):
    monkeypatch.setattr(features, "BLOCK", 3)  # crops: 6 central ones and 3 × 4 others are 8 files


class Stored(Noise):
    """Pixels that are on a disk, as far as their features can know."""

    def __init__(self, path):
        super().__init__(10)
        self.path = path


@pytest.fixture
def stored(tmp_path):
    return Stored(tmp_path / "pixels of ten images")


def create(dim=4, **settings):
    torch.manual_seed(0)
    options = {"backbone": "small", "stored": 36, "crop": 32, "pooling": "avg+max"} | settings
    return Embedder.create(dim=dim, **options).eval()


def make(model, pixels, cache, *, trained=TRAINED, augment=RANDOM, seed=3, **options):
    return FeatureStore(model, pixels, trained, TESTED, augment, seed=seed, cache=cache, **options)


def filled(*arguments, **options):
    store, crops = make(*arguments, **options), []
    store.fill(crops.append)
    return store, sum(crops)


def pooled(model, images):
    stages = model.backbone.stages(images)[-model.settings.stages :]
    with torch.no_grad():
        return torch.cat([model.heads[0][0](stage) for stage in stages], dim=1).half().float()


CENTRAL, OTHERS = len({*TRAINED, *TESTED}), CROPS * len(TRAINED)


@pytest.mark.usefixtures("_small_files")
@pytest.mark.parametrize("stages", [1, 3])
def test_features_are_those_of_the_crops_that_the_network_would_see(stored, tmp_path, stages):
    model = create(stages=stages)
    store, computed = filled(model, stored, tmp_path)
    assert computed == CENTRAL + OTHERS
    shown = np.array([9, 0, 4])
    central = pooled(model, model.preprocess(stored.batch(shown)))
    torch.testing.assert_close(store.batch(shown), central, rtol=1e-3, atol=1e-3)

    rows = TRAINED[:3]  # the first file of each set of random crops
    per_set = -(-len(TRAINED) // 3)
    files = [-(-CENTRAL // 3) + number * per_set for number in range(CROPS)]
    drawn = [pooled(model, RANDOM(stored.batch(rows), seed=0, step=file)) for file in files]
    known = torch.stack([pooled(model, model.preprocess(stored.batch(rows))), *drawn])  # [1 + CROPS, rows, F]
    seen = set()
    for step in range(60):
        vectors = store.draw(rows, step=step)
        distance = (known - vectors).abs().amax(dim=2)  # [1 + CROPS, rows]
        assert distance.amin(dim=0).max() < 2e-3
        seen |= {(int(crop), row) for row, crop in enumerate(distance.argmin(dim=0))}
    assert seen == {(crop, row) for crop in range(1 + CROPS) for row in range(len(rows))}


def test_a_rank_draws_its_part_of_what_one_process_draws(stored, tmp_path):
    store, _ = filled(create(), stored, tmp_path)
    rows = TRAINED[np.array([3, 0, 2, 2, 1])]
    whole = store.draw(rows, step=8)
    parts = store.draw(rows[:2], step=8), store.draw(rows[2:], step=8, first=2)
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(store.draw(rows, step=8), whole)
    assert any(not torch.equal(store.draw(rows, step=step), whole) for step in range(9, 12))


@pytest.mark.usefixtures("_small_files")
def test_features_are_computed_once(stored, tmp_path):
    first, _ = filled(create(), stored, tmp_path)
    assert first.missing == {}
    for seed in (3, 4):
        again = make(create(dim=8), stored, tmp_path, seed=seed)  # another head, another seed
        assert again.missing == {}
        crops = []
        again.fill(crops.append)
        assert crops == []
        same = [
            torch.equal(again.draw(TRAINED, step=step), first.draw(TRAINED, step=step)) for step in range(9)
        ]
        assert all(same) if seed == 3 else not all(same)
        assert torch.equal(again.batch(TESTED), first.batch(TESTED))


@pytest.mark.usefixtures("_small_files")
@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_file_is_computed_again(stored, tmp_path, damage):
    first, _ = filled(create(), stored, tmp_path)
    file = sorted((tmp_path / "features").rglob("*.bin"))[1]
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage is None else damage)
    again, computed = filled(create(), stored, tmp_path)
    assert computed == 3
    assert file.read_bytes() == content
    assert torch.equal(again.batch(TESTED), first.batch(TESTED))


@pytest.mark.usefixtures("_small_files")
def test_what_was_computed_before_a_kill_is_kept(stored, tmp_path):
    crops = []

    def killed(count):
        crops.append(count)
        if len(crops) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(create(), stored, tmp_path).fill(killed)
    after, computed = filled(create(), stored, tmp_path)
    assert sum(crops) + computed == CENTRAL + OTHERS
    alone, _ = filled(create(), stored, tmp_path / "other")
    assert torch.equal(after.draw(TRAINED, step=1), alone.draw(TRAINED, step=1))


@pytest.mark.parametrize(
    "other",
    [
        {"augment": Augment(16, "resized", scale=(0.5, 1.0), flip=0.5)},
        {"trained": TRAINED[:3]},
        {"half": True},
        {"weights": 2},
        {"pixels": "of other images"},
        {"crop": 24},
        {"stages": 2},
    ],
    ids=lambda other: next(iter(other)),
)
def test_features_of_something_else_are_not_used(stored, tmp_path, other):
    filled(create(), stored, tmp_path)
    other, model, pixels = dict(other), create(), stored
    if "weights" in other:
        with torch.no_grad():
            next(model.backbone.parameters()).mul_(other.pop("weights"))
    for name in {"crop", "stages"} & other.keys():
        model = create(**{name: other.pop(name)})
    if "pixels" in other:
        pixels = Stored(tmp_path / other.pop("pixels"))
    assert sum(make(model, pixels, tmp_path, **other).missing.values()) > 0


def test_pixels_without_a_file_leave_none(tmp_path):
    filled(create(), Noise(10), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_the_files_only(stored, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(features.durable, "write", full)
    assert filled(create(), stored, tmp_path)[0].batch(TESTED).isfinite().all()


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ([], True),
        (["schedule.head_epochs=7"], True),
        (["schedule.head_epochs=5"], False),
        (["schedule.epochs=0", "schedule.head_epochs=0"], False),
        (["model.pooling=gem"], False),  # whose exponent is learned
        (["model.head=multilevel"], False),
        (["model.head=attention", "model.learners=[8, 8]"], False),
        (["model.head=split", "model.learners=[8, 8]"], True),
        (["model.head=pca"], True),
    ],
)
def test_only_heads_on_fixed_features_use_them(changes, holds):
    assert uses_features(small_recipe(*HEAD_ONLY, *changes)) == holds


def test_without_a_head_nothing_would_be_trained(stripes):
    recipe = small_recipe(*HEAD_ONLY, "model.head=none")
    with pytest.raises(UserError, match=r"^schedule\.head_epochs=6: without a head .*set it to 0"):
        fit(recipe, stripes, None)


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    root, random = tmp_path_factory.mktemp("stripes"), np.random.default_rng(0)
    write_stripes(root / "train", [f"class {number}" for number in range(12)], 6, random, 0)
    write_stripes(root / "test", list("abcdef"), 6, random, 12)
    return read(root)


@pytest.fixture
def crops_seen(monkeypatch):
    """How many images the backbone was given, of each call."""
    seen, compute = [], FeatureStore._compute

    def counted(self, rows, *arguments):
        seen.append(len(rows))
        return compute(self, rows, *arguments)

    monkeypatch.setattr(FeatureStore, "_compute", counted)
    return seen


@pytest.mark.parametrize(
    ("protocol", "head"),
    [("paper", []), ("fair", []), ("fair", ["model.stages=3", "model.layer_norm=true", "model.head=pca"])],
)
def test_a_head_learns_and_the_backbone_stays(stripes, tmp_path, monkeypatch, crops_seen, protocol, head):
    monkeypatch.setattr(monitor, "LOG_EVERY", 1)
    changes = (f"train.protocol={protocol}", "model.freeze_batch_norm=true", "loss.name=proxy-nca", *head)
    recipe = small_recipe(*HEAD_ONLY, *changes)
    result = fit(recipe, stripes, tmp_path / "run", cache=tmp_path / "cache")
    assert sum(crops_seen) == 72 + 36 + (CROPS * 72 if protocol == "paper" else CROPS * 54)
    lines = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if "loss" in line]
    assert np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])
    untrained = fit(recipe.changed(["schedule.epochs=0"]), stripes, None, cache=tmp_path / "cache").model
    before, after = untrained.state_dict(), Embedder.load(tmp_path / "run" / "last").state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items() if "backbone" in name)
    assert not all(torch.equal(value, before[name]) for name, value in after.items() if "heads" in name)

    crops_seen.clear()
    again = fit(recipe, stripes, None, cache=tmp_path / "cache")
    assert crops_seen == []
    assert again.history == result.history
    files = [stripes.path(row) for row in stripes.splits["test"]]
    whole = Embedder.load(tmp_path / "run").embed(files, progress=False)  # by backbone and head
    labels = stripes.labels[stripes.splits["test"]]
    found = evaluate(whole, labels)
    assert found.precision[1] == pytest.approx(result.test["P@1"], abs=3)  # features are kept as float16


def test_an_estimate_counts_the_crops_that_are_missing(stripes, tmp_path, monkeypatch, crops_seen):
    said, passes, estimate = [], [], duration.estimate_duration

    def pass_seconds(job, images, backward):
        passes.append((tuple(images.shape[1:]), backward))
        return (10.0 if images.ndim == 4 else 1e-6) * len(images)

    def told(job):
        said.append((estimate(job), duration.expected_seconds(job)))
        return said[-1][0]

    monkeypatch.setattr(duration, "_pass_seconds", pass_seconds)
    monkeypatch.setattr(loop, "estimate_duration", told)
    for _ in range(2):
        training.fit(small_recipe(*HEAD_ONLY, "augment.size=24"), stripes, None, device="cpu", cache=tmp_path)
    (first, seconds), (second, less) = said
    crops = sum(crops_seen)
    assert crops == 72 + 36 + CROPS * 72
    assert f": features of {crops} crops, 18 steps of 24 images at 24 px, 3 evaluations" in first
    assert "crops" not in second
    assert seconds == pytest.approx(10 * crops, abs=1)
    assert less < 1
    assert set(passes) == {((3, 24, 24), False), ((3, 32, 32), False), ((192,), False)}


def test_a_step_with_nan_is_reproduced_from_its_features(stripes, tmp_path):
    with pytest.raises(NonFiniteError, match=r"^after step \d: NaN or infinity on images \d+, "):
        fit(small_recipe(*HEAD_ONLY, "optimizer.lr=1e30"), stripes, tmp_path / "run", cache=tmp_path)
    found = reproduce(tmp_path / "run" / "nonfinite.safetensors")
    assert found.where is not None
