"""Training on marks: a marked mistake is mended, and a run with marks is as exact and resumable as any."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from firstpage import cli
from firstpage.data import GroupSampler, read
from firstpage.data.marks import Marks
from firstpage.errors import UserError
from firstpage.losses import NCA, Ensemble
from firstpage.models.embedder import Embedder
from firstpage.report.facts import run_facts
from firstpage.runs.checkpoint import Checkpoints
from firstpage.runs.mark_ranks import MarkRanks
from firstpage.runs.record import Record
from firstpage.search import Index
from firstpage.training import fit, reproduce
from firstpage.training.features import CROPS, FeatureStore
from firstpage.training.feedback import RIGHT, WRONG, MarkedSampler, marked_loss
from firstpage.training.job import TrainJob
from firstpage.training.memory import Memory
from firstpage.training.nonfinite import NonFiniteError
from firstpage.training.step import TrainStep
from support.striped import small_recipe, write_stripes


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A trained run, an index of its test images, and a wrong first result of an uploaded query, marked."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("feedback")
    random = np.random.default_rng(0)
    write_stripes(root / "data/train", [f"class {number}" for number in range(12)], 6, random, 0)
    write_stripes(root / "data/test", list("abcdef"), 6, random, 12)
    catalog = read(root / "data")
    recipe = small_recipe("schedule.epochs=4", "train.evaluate_every=4")
    model = fit(recipe, catalog, root / "before", cache=root / "cache", progress=False).model
    test = catalog.split("test")
    index = Index.build(root / "index", model, test, cache=root / "cache", progress=False)
    uploads = root / "index/feedback"
    uploads.mkdir()
    lines = []
    for row in range(len(index)):
        with Image.open(index.row(row)["path"]) as image:
            query = image.filter(ImageFilter.GaussianBlur(0.8))
        [found] = index.search([query], k=36)
        if found[0].label == index.row(row)["label"]:
            continue
        query.save(uploads / "new.jpg", quality=95)
        name = hashlib.sha256((uploads / "new.jpg").read_bytes()).hexdigest()
        (uploads / "new.jpg").rename(uploads / f"{name}.jpg")
        same = next(match for match in found if match.label == index.row(row)["label"])
        for match, right in ((found[0], False), (same, True)):
            line = {"time": "2026-01-01T00:00:00", "query": f"feedback/{name}.jpg", "query_id": None}
            line |= {"result_id": match.id, "result_path": match.path, "result_label": match.label}
            lines.append(line | {"right": right, "model": index.manifest.model})
        break
    assert lines, "the model makes no mistake to mark"
    (root / "index/feedback.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    torch.set_num_threads(threads)
    return root


def rank(model, query, result, gallery):
    vectors = model.embed([query, *gallery], progress=False)
    order = (vectors[1:] @ vectors[0]).argsort(descending=True)
    return order.tolist().index(gallery.index(result))


def train(place, folder, *changes):
    catalog = replace(read(place / "data"), marks=Marks.read(place / "index"))
    recipe = small_recipe("schedule.epochs=4", "train.evaluate_every=4", *changes)
    return fit(recipe, catalog, folder, cache=place / "cache", device="cpu", progress=False)


def test_a_marked_mistake_is_mended(place, tmp_path, capsys):
    marks = Marks.read(place / "index")
    query, wrong, right = marks.path(marks.queries[0]), marks.results[0], marks.results[1]
    index = Index.open(place / "index")
    gallery = [row["path"] for row in index.rows()]
    before = rank(index.model, query, wrong, gallery), rank(index.model, query, right, gallery)
    command = ["train", "before/recipe.toml", "--data", "data", "--feedback", "index", "--cache", "cache"]
    command = [
        str(place / word) if word in ("before/recipe.toml", "data", "index", "cache") else word
        for word in command
    ]
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--out", str(tmp_path / "run"), "--device", "cpu"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    mended = Embedder.load(tmp_path / "run")
    after = rank(mended, query, wrong, gallery), rank(mended, query, right, gallery)
    assert before[0] == 0
    assert after[0] > after[1]
    ranks = MarkRanks.read(tmp_path / "run")
    assert ranks.text() in shown
    assert (ranks.right, ranks.wrong, ranks.images, ranks.tested) == (1, 1, 37, 2)
    assert 0 <= ranks.before <= ranks.after <= 2
    assert run_facts(Record.read(tmp_path / "run"))["Marks"] == ranks.text()
    copied = Marks.read(tmp_path / "run")
    assert copied.digest == marks.digest
    assert copied.path(copied.queries[0]).read_bytes() == query.read_bytes()


def test_a_stopped_run_ends_as_if_it_had_not_been_and_other_marks_are_another_run(
    place, tmp_path, monkeypatch
):
    changes = ("memory.size=24", "batch.chunk=16", "model.head=multilevel", "train.store=none")
    whole = train(place, tmp_path / "whole", *changes)
    update, steps = TrainJob.update, []

    def stop(self, *arguments, **options):
        steps.append(self.state.step)
        if len(steps) == 8:
            raise RuntimeError("stopped")
        return update(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(TrainJob, "update", stop)
        patched.setattr(Checkpoints, "is_due", lambda self: len(steps) % 3 == 0)
        with pytest.raises(RuntimeError, match="stopped"):
            train(place, tmp_path / "run", *changes)
    resumed = train(place, tmp_path / "run", *changes)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    plain = read(place / "data")
    recipe = small_recipe("schedule.epochs=4", "train.evaluate_every=4", *changes)
    with pytest.raises(UserError, match=r"contains a run with other marks: --feedback .*run repeats its own"):
        fit(recipe, plain, tmp_path / "run", cache=place / "cache", progress=False)
    own = fit(recipe, replace(plain, marks=Marks.read(tmp_path / "run")), tmp_path / "run", progress=False)
    assert own.best == whole.best
    with pytest.raises(UserError, match=r"contains a run without marks"):
        train(place, place / "before")


def test_the_recipes_loss_does_not_see_marked_images():
    """Neither do memories and health."""
    model = Embedder.create(backbone="small", dim=4, stored=32, crop=32, head="multilevel").eval()
    recipe = small_recipe("train.feedback=0.5", "memory.size=8")
    images, ids = torch.randn(12, 3, 32, 32), torch.arange(12)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, RIGHT, RIGHT, WRONG, WRONG])
    memories = [Memory(8, 4) for _ in range(3)]
    criteria = Ensemble([NCA(), NCA(), NCA()])
    step = TrainStep(recipe, model, criteria, memories, marked=4)
    value = step(lambda rows: images[rows], labels, ids, 0)
    plain = TrainStep(recipe, model, criteria)
    expected = plain(lambda rows: images[rows], labels[:8], ids[:8], 0)
    marked = sum(marked_loss(level[8:], labels[8:]) for level in model.raw(images))
    torch.testing.assert_close(value, expected + 0.5 * marked.detach())
    assert [len(level) for level in step.levels] == [8, 8, 8]
    torch.testing.assert_close(step.health(labels, ids, 0), plain.health(labels[:8], ids[:8], 0))
    step.push_memories(labels, ids, unless=torch.zeros(()))
    assert memories[0].candidates(step.levels[0], labels[:8], ids[:8])["candidate_labels"].min() == 0


@pytest.mark.parametrize("store", ["raw", "none"])
def test_a_head_alone_learns_from_the_features_of_marked_images(place, tmp_path, monkeypatch, store):
    computed, compute = [], FeatureStore._compute

    def counted(self, rows, *arguments):
        computed.extend(rows.tolist())
        return compute(self, rows, *arguments)

    monkeypatch.setattr(FeatureStore, "_compute", counted)
    images = len(read(place / "data"))
    for _ in range(2):
        trained = train(place, None, "schedule.head_epochs=4", f"train.store={store}")
    marked = Marks.read(place / "index")
    rows = sorted(row for row in computed if row >= images)
    times = 1 if store == "raw" else 2  # what is decoded anew has no file that its features could be kept by
    assert rows == sorted([images, images + 1, images + 2] * (1 + CROPS) * times)
    assert len(marked) == 2
    assert trained.history[-1] != trained.history[0]


def test_a_nan_is_reproduced_with_its_marked_images(place, tmp_path, monkeypatch):
    calls = []

    def bad(self, images):
        calls.append(len(images))
        levels = original(self, images)
        return tuple(level * torch.nan for level in levels) if len(calls) == 3 and self.training else levels

    original = Embedder.raw
    monkeypatch.setattr(Embedder, "raw", bad)
    with pytest.raises(NonFiniteError) as error:
        train(place, tmp_path / "run", "train.evaluate_untrained=false")
    monkeypatch.undo()
    again = reproduce(error.value.snapshot)
    assert again.where is None
    assert len(again.paths) == 24 + 4
    assert any("feedback/" in path for path in again.paths)


def test_every_mark_gets_its_turn_and_the_sampler_continues():
    def make():
        inner = GroupSampler(np.arange(40) // 4, batch_size=8, images_per_class=4, seed=3)
        return MarkedSampler(inner, 40, 20, seed=5)

    sampler = make()
    assert sampler.marked == 32
    batches = list(sampler)
    assert all(len(batch) == 40 and max(batch[:8]) < 40 for batch in batches)
    marked = [row for batch in batches for row in batch[8:]]
    assert all(second == first + 1 for first, second in zip(marked[::2], marked[1::2], strict=True))
    assert sorted(marked[:40:2]) == list(range(40, 80, 2))
    assert marked[:40] != marked[40:80]
    resumed, second = make(), make()
    rows = iter(second)
    begun = [next(rows) for _ in range(2)]
    resumed.load_state_dict(second.state_dict())
    assert begun + list(resumed) == batches
    assert resumed.epoch == 1
    assert list(resumed) == list(sampler)


def test_the_cost_of_marks_is_that_of_plain_loops():
    vectors = torch.randn(12, 5, requires_grad=True)
    labels = torch.tensor([RIGHT, WRONG, WRONG, RIGHT, WRONG, RIGHT]).repeat_interleave(2)
    expected = 0.0
    for pair in range(6):
        cosine = torch.nn.functional.cosine_similarity(vectors[2 * pair], vectors[2 * pair + 1], dim=0)
        expected += (1 - cosine if labels[2 * pair] == RIGHT else max(cosine - 0.5, cosine * 0)) / 6
    value = marked_loss(vectors, labels)
    torch.testing.assert_close(value, expected)
    value.backward()
    assert vectors.grad.isfinite().all()


def line_of(**changes):
    line = {"query": "/photos/a.png", "result_path": "/photos/b.png", "right": True} | changes
    return json.dumps(line) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json\n", r"feedback.jsonl, line 1: is not valid JSON .*: remove the line"),
        (line_of() + "[1]\n", r"line 2: must be a table"),
        (line_of(right="yes"), r"line 1: must have query, result_path and right"),
        (line_of(query="../secret.png"), r"'../secret.png' must be absolute, or in the folder feedback"),
        (line_of(query="feedback/../a.png"), r"must be absolute, or in the folder feedback"),
        (line_of(result_path="b.png"), r"'b.png' must be absolute"),
        ("", r"no mark to learn from: mark results in firstpage serve"),
    ],
)
def test_marks_that_are_not_valid_are_told(tmp_path, text, message):
    (tmp_path / "feedback.jsonl").write_text(text)
    with pytest.raises(UserError, match=message):
        Marks.read(tmp_path)


def test_the_last_mark_of_a_pair_holds_and_lost_images_are_left_out(tmp_path):
    for name in "abc":
        Image.new("RGB", (40, 30), "red").save(tmp_path / f"{name}.png")
    lines = [
        line_of(query=str(tmp_path / first), result_path=str(tmp_path / second), right=right)
        for first, second, right in [
            ("a.png", "b.png", True),
            ("a.png", "c.png", True),
            ("a.png", "b.png", False),
            ("a.png", "gone.png", True),
        ]
    ]
    (tmp_path / "feedback.jsonl").write_text("".join(lines) + '{"query": "/a')
    with pytest.warns(UserWarning, match="left out") as warned:
        marks = Marks.read(tmp_path / "feedback.jsonl")
    assert [str(warning.message).partition(": ")[2] for warning in warned] == [
        "its last line is incomplete and is left out",
        f"left out 1 marks of unreadable images, such as {tmp_path}/gone.png",
    ]
    assert list(zip(marks.results, marks.right, strict=True)) == [
        (f"{tmp_path}/c.png", True),
        (f"{tmp_path}/b.png", False),
    ]
