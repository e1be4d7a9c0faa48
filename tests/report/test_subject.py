"""Which model is judged on which images, and what is said where there are none."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from firstpage.data import Catalog, PixelStore, VerificationPairs, read
from firstpage.models import Embedder
from firstpage.recipes import Recipe
from firstpage.report import Subject, measure, page
from firstpage.report.facts import differences, facts
from firstpage.runs import Record
from firstpage.runs.folder import fingerprint
from firstpage.training import fit
from support.striped import recipe


def opened(folder, runs, **settings):
    return Subject.open(folder, cache=runs / "cache", progress=False, **settings)


def test_a_run_finds_its_data_and_repeats_its_figures(runs):
    """The figures of `evaluate` are those the run reported, to the last bit."""
    for name in ("one", "two"):
        subject = opened(runs / name, runs)
        about = json.loads((runs / name / "run.json").read_text())
        found = measure(subject, clustering=False).retrieval.metrics()
        assert {key: found[key] for key in about["result"]["test"]} == about["result"]["test"]
        assert subject.own_data
        assert subject.name == name


def test_a_model_alone_needs_its_data_named(runs, stripes):
    with pytest.raises(ValueError, match="best: a saved model does not know its data: name it by --data"):
        opened(runs / "one" / "best", runs)
    subject = opened(runs / "one" / "best", runs, data=stripes)
    assert (subject.record, subject.own_data, subject.protocol) == (None, False, "paper")
    assert torch.equal(subject.queries, opened(runs / "one", runs).queries)


def test_data_that_moved_or_changed_is_said(runs, stripes, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "one", run)
    about = json.loads((run / "run.json").read_text())
    about["data"]["root"] = str(tmp_path / "gone")
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(FileNotFoundError, match="cannot be found as it was: name it by --data"):
        opened(run, runs)
    moved = tmp_path / "moved"
    shutil.copytree(stripes, moved)
    assert opened(run, runs, data=moved).own_data
    next(moved.glob("test/plain/*")).unlink()
    about["data"]["root"] = str(moved)
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(FileNotFoundError, match="as it was"):
        opened(run, runs)
    assert not opened(run, runs, data=moved).own_data


def test_a_run_chosen_on_the_test_is_never_called_fair(runs):
    with pytest.raises(ValueError, match="chose its best epoch on the test classes"):
        opened(runs / "one", runs, protocol="fair")
    assert opened(runs / "two", runs).protocol == "fair"
    with pytest.raises(ValueError, match="choose one of paper, fair"):
        opened(runs / "two", runs, protocol="fare")


def test_without_a_test_split_fair_judges_by_the_classes_held_out(runs, stripes):
    catalog = read(stripes)
    part = catalog.take(catalog.splits["train"])
    subject = opened(runs / "two", runs, data=part)
    held = {part.classes[label] for label in subject.labels.tolist()}
    assert 0 < len(held) < 12
    with pytest.raises(ValueError, match="no test split"):
        opened(runs / "one", runs, data=part)


def test_data_without_splits_is_searched_whole_unless_it_was_learned_from(runs, stripes, tmp_path):
    other = stripes / "test"
    every = np.arange(len(read(other)))
    assert not read(other).splits
    for folder in (runs / "one", runs / "two", runs / "one" / "best"):
        assert np.array_equal(opened(folder, runs, data=other).search.queries, every)
    assert (
        f"{len(every) - 1} queries among one another, 6 of 7 classes"
        in measure(opened(runs / "one", runs, data=other), clustering=False).headline()
    )
    run = tmp_path / "run"
    shutil.copytree(runs / "one", run)
    about = json.loads((run / "run.json").read_text())
    places = {"root": str(other.resolve())}, {"root": "gone", "fingerprint": fingerprint(read(other))}
    for known in places:  # changed since, or moved
        (run / "run.json").write_text(json.dumps(about | {"data": about["data"] | known}))
        assert len(np.unique(opened(run, runs, data=other).labels)) < 3  # a fifth of the classes


def test_classes_learned_from_are_not_tested_when_the_data_grows(stripes, tmp_path):
    grown = tmp_path / "grown"
    for place in (stripes / "train", stripes / "test"):
        shutil.copytree(place, grown, dirs_exist_ok=True)
    given = read(grown)
    result = fit(recipe("schedule.epochs=1"), given, tmp_path / "run", cache=tmp_path, progress=False)
    learned = json.loads((result.folder / "run.json").read_text())["data"]["learned"]
    before = {given.classes[label] for label in opened(result.folder, tmp_path / "x").labels.tolist()}
    assert before == {*given.classes} - {*learned}
    for number in range(6):
        shutil.copytree(next(path for path in grown.iterdir() if path.is_dir()), grown / f"new {number}")
    subject = opened(result.folder, tmp_path / "x", data=read(grown))
    after = {subject.catalog.classes[label] for label in subject.labels.tolist()}
    assert after == before | {f"new {number}" for number in range(6)}


def test_queries_and_gallery_of_their_own(runs, stripes):
    catalog = read(stripes)
    test = catalog.splits["test"]
    splits = {"query": test[::3], "gallery": np.setdiff1d(test, test[::3])}
    parted = Catalog("x", catalog.root, catalog.paths, catalog.labels, catalog.classes, splits)
    measured = measure(opened(runs / "one", runs, data=parted))
    assert measured.retrieval.queries + measured.retrieval.without_positive == len(test[::3])
    assert measured.subject.results is splits["gallery"] or len(measured.subject.results) == len(
        splits["gallery"]
    )
    assert f"among {len(splits['gallery'])} images" in measured.text()
    assert measured.clustering.assignment.shape == (len(test),)


def test_pairs_are_verified_where_the_data_has_some(runs, stripes):
    catalog = read(stripes)
    test = catalog.splits["test"]
    random = np.random.default_rng(0)
    left, right = random.choice(test, 40), random.choice(test, 40)
    same = catalog.labels[left] == catalog.labels[right]
    pairs = VerificationPairs(np.arange(40) % 4, left, right, same)
    splits = {"test": test}
    faces = Catalog(
        "faces", catalog.root, catalog.paths, catalog.labels, catalog.classes, splits, pairs=pairs
    )
    measured = measure(opened(runs / "one", runs, data=faces), clustering=False)
    assert measured.verification.pairs == 40
    # Against the cosines themselves: the rows of pairs are those of the catalog, not of the test.
    store = PixelStore.build(catalog, runs / "cache", size=36, progress=False)
    vectors = Embedder.load(runs / "one").embed(store, progress=False)
    cosine = (vectors[left] * vectors[right]).sum(1)
    true, false = cosine[torch.from_numpy(same)], cosine[torch.from_numpy(~same)]
    auc = ((true[:, None] > false).double() + 0.5 * (true[:, None] == false).double()).mean()
    assert measured.verification.auc == pytest.approx(100 * auc.item(), abs=1e-6)
    assert "pairs     accuracy" in measured.text()
    assert max(map(len, measured.text(every_class=True).splitlines())) <= 80


def test_an_image_that_cannot_be_read_is_left_out(runs, stripes, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(stripes, moved)
    next(moved.glob("test/plain/*")).write_bytes(b"not an image")
    subject = opened(runs / "one", runs, data=moved)
    assert len(subject.queries) == len(subject.catalog.splits["test"]) - 1
    measured = measure(subject, clustering=False)
    (note,) = json.loads(measured.json())["notes"]
    assert note.startswith("1 of 109 images cannot be read, such as test/plain/")
    assert measured.text().endswith(f"\n\n{note}")
    assert note in str(page({"one": measured}))


def test_json_holds_names_that_are_no_utf8(runs, stripes):
    catalog = read(stripes)
    classes = [f"caf\udce9 {name}" for name in catalog.classes]
    strange = replace(catalog, classes=classes)
    text = measure(opened(runs / "one", runs, data=strange), clustering=False).json()
    assert {row["class"] for row in json.loads(text.encode())["classes"]} <= set(classes)


def test_what_is_no_run_and_no_model_is_said(runs, tmp_path):
    with pytest.raises(FileNotFoundError, match="no saved embedder"):
        opened(tmp_path, runs)
    shutil.copytree(runs / "one", tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json: Expecting"):
        opened(tmp_path / "run", runs)
    (tmp_path / "run" / "run.json").write_text("[]")
    with pytest.raises(ValueError, match="not a table"):
        opened(tmp_path / "run", runs)


def test_a_record_tells_its_series_and_facts(runs):
    record = Record.read(runs / "one")
    series = record.series()
    steps, values = series["spread"]
    assert (steps[:4], values[:4]) == ([0, 1, 2, 3], [0.5, 0.4, 0.3, pytest.approx(0.2)])
    assert np.isnan(series["odd_thing"][1][-1])
    assert "beta_histogram" not in series
    assert "warning" not in series
    found = facts(record)
    assert found["Loss"] == "batch-all"
    assert found["Data"] == "stripes, 109 images"
    assert {"Seed", "torch", "Device", "Time in training", "Data fingerprint"} <= set(found)


def test_warnings_of_a_run_are_among_its_facts(tmp_path):
    record = Record(tmp_path, Recipe(), {"result": {"warnings": ["collapsed", "no longer"]}}, [])
    assert facts(record)["Warnings"] == "collapsed; no longer"


def test_a_run_cut_short_has_fewer_facts(tmp_path):
    record = Record(tmp_path, Recipe(), {}, [])
    assert "Best epoch" not in facts(record)
    assert record.series() == {}


def test_only_settings_that_differ_are_told():
    one, two = recipe(), recipe("loss.name=topk", "loss.k=2", "schedule.epochs=9")
    assert differences([one, two]) == {
        "loss.name": ["batch-all", "topk"],
        "loss.k": ["–", "2"],
        "schedule.epochs": ["2", "9"],
    }
    assert differences([one, one]) == {}
