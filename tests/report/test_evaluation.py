"""Which model is evaluated on which images, and errors if there are none."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from firstpage import figures
from firstpage.data import Catalog, PixelStore, VerificationPairs, read
from firstpage.data.splits import QueryGallery
from firstpage.figures import drawing
from firstpage.models import Embedder
from firstpage.recipes import Recipe
from firstpage.report import embed_test, evaluate_test, render_page, write_report
from firstpage.report.charts import render_health
from firstpage.report.evaluation import EmbeddedTest
from firstpage.report.facts import recipe_differences, run_facts
from firstpage.runs import Record, open_run
from firstpage.runs.folder import RunFolder, fingerprint
from firstpage.runs.run_data import find_data
from firstpage.training import fit
from support.striped import small_recipe


def embedded(folder, runs, **settings):
    return embed_test(open_run(folder, cache=runs / "cache", progress=False, **settings))


def test_a_run_finds_its_data_and_repeats_its_figures(runs):
    """The figures of `evaluate` are those the run reported, to the last bit."""
    for name in ("one", "two"):
        test = embedded(runs / name, runs)
        about = json.loads((runs / name / "run.json").read_text())
        found = evaluate_test(test, clustering=False).retrieval.metrics()
        assert {key: about["result"]["test"][key] for key in found} == found
        assert test.is_own_data
        assert test.name == name


def roc_of_figure(sources, folder, monkeypatch, **settings):
    """The ROC curve that `figures.draw` plots."""
    drawn = {}
    monkeypatch.setattr(
        drawing, "plot_roc", lambda curves, areas, style: drawn.update(curves) or style.panels()[0]
    )
    figures.draw("roc", sources, folder / "roc.svg", **settings)
    return drawn


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("data", ["own", "test only", "unreadable"])
def test_figures_and_evaluations_of_a_run_are_equal(name, data, runs, stripes, tmp_path, monkeypatch):
    """The same rows in the same precision, to the last bit; also of a run that was trained in bfloat16."""
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(runs / "cache"))
    settings = {}
    if data == "test only":
        settings = {"data": str(stripes / "test")}
    if data == "unreadable":
        shutil.copytree(stripes, tmp_path / "moved")
        next((tmp_path / "moved").glob("test/plain/*")).write_bytes(b"not an image")
        settings = {"data": str(tmp_path / "moved")}
    half = tmp_path / "half"
    shutil.copytree(runs / name, half)
    (half / "recipe.toml").write_text(
        Recipe.read(half / "recipe.toml").changed(["train.precision=bf16"]).toml()
    )
    drawn = roc_of_figure([runs / name, half], tmp_path, monkeypatch, **settings)
    tests = {folder.name: embedded(folder, runs, **settings) for folder in (runs / name, half)}
    assert not torch.equal(tests[name].queries, tests["half"].queries)
    for title, test in tests.items():
        expected = evaluate_test(test, clustering=False).retrieval.roc_curve
        assert all(one.equal(two) for one, two in zip(drawn[title], expected, strict=True))
        queries, gallery = figures.read_embeddings(
            {name: runs / name, "half": half}[title], read(settings["data"]) if settings else None
        ).test()
        assert torch.equal(queries.embeddings, test.queries)
        assert np.array_equal(queries.rows, test.rows.queries)
        assert gallery is None


def test_figures_and_evaluations_are_equal_with_a_gallery(runs, stripes, monkeypatch):
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(runs / "cache"))
    catalog = read(stripes)
    test = catalog.splits["test"]
    splits = {"train": catalog.splits["train"], "query": test[::3], "gallery": test[::2]}  # some in both
    catalog = replace(catalog, splits=splits)
    expected = embedded(runs / "one", runs, data=catalog)
    queries, gallery = figures.read_embeddings(runs / "one", catalog).test()
    assert torch.equal(queries.embeddings, expected.queries)
    assert torch.equal(gallery.embeddings, expected.gallery)
    assert torch.equal(queries.labels, expected.labels)
    assert torch.equal(gallery.labels, expected.gallery_labels)


@pytest.mark.usefixtures("_undrawn")
def test_a_report_opens_each_model_once_and_all_of_them_before_embedding(runs, tmp_path, monkeypatch):
    loaded, load, embed = [], Embedder.load.__func__, Embedder.embed
    monkeypatch.setattr(
        Embedder, "load", classmethod(lambda cls, *given: loaded.append(given[0].name) or load(cls, *given))
    )
    monkeypatch.setattr(
        Embedder, "embed", lambda *given, **more: loaded.append("embed") or embed(*given, **more)
    )
    write_report([runs / "one", runs / "two"], tmp_path / "x.html", cache=tmp_path / "cache", progress=False)
    assert loaded == ["one", "two", "embed", "embed"]


def test_a_model_alone_needs_its_data_named(runs, stripes):
    with pytest.raises(
        ValueError, match="best: a saved model does not record its data: pass the dataset with --data"
    ):
        embedded(runs / "one" / "best", runs)
    test = embedded(runs / "one" / "best", runs, data=stripes)
    assert (test.record, test.is_own_data, test.protocol) == (None, False, "fair")
    assert torch.equal(test.queries, embedded(runs / "one", runs).queries)


def test_data_that_moved_or_changed_is_said(runs, stripes, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "one", run)
    about = json.loads((run / "run.json").read_text())
    about["data"]["root"] = str(tmp_path / "gone")
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(FileNotFoundError, match="was moved or changed: pass the dataset with --data"):
        embedded(run, runs)
    moved = tmp_path / "moved"
    shutil.copytree(stripes, moved)
    assert embedded(run, runs, data=moved).is_own_data
    next(moved.glob("test/plain/*")).unlink()
    about["data"]["root"] = str(moved)
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(FileNotFoundError, match="was moved or changed"):
        embedded(run, runs)
    assert not embedded(run, runs, data=moved).is_own_data


def test_a_run_chosen_on_the_test_is_never_called_fair(runs):
    with pytest.raises(ValueError, match="selected its best epoch on the test classes"):
        embedded(runs / "one", runs, protocol="fair")
    assert embedded(runs / "two", runs).protocol == "fair"
    with pytest.raises(ValueError, match="choose one of paper, fair"):
        embedded(runs / "two", runs, protocol="fare")


def test_without_a_test_split_fair_judges_by_the_classes_held_out(runs, stripes):
    catalog = read(stripes)
    part = catalog.take(catalog.splits["train"])
    test = embedded(runs / "two", runs, data=part)
    held = {part.classes[label] for label in test.labels.tolist()}
    assert 0 < len(held) < 12
    with pytest.raises(ValueError, match="no test split"):
        embedded(runs / "one", runs, data=part)


def test_data_without_splits_is_searched_whole_unless_it_was_learned_from(runs, stripes, tmp_path):
    other = stripes / "test"
    every = np.arange(len(read(other)))
    assert not read(other).splits
    for folder in (runs / "one", runs / "two", runs / "one" / "best"):
        assert np.array_equal(embedded(folder, runs, data=other).rows.queries, every)
    assert (
        f"{len(every) - 1} queries among one another, 6 of 7 classes"
        in evaluate_test(embedded(runs / "one", runs, data=other), clustering=False).headline()
    )
    run = tmp_path / "run"
    shutil.copytree(runs / "one", run)
    about = json.loads((run / "run.json").read_text())
    places = {"root": str(other.resolve())}, {"root": "gone", "fingerprint": fingerprint(read(other))}
    for known in places:  # changed since, or moved
        (run / "run.json").write_text(json.dumps(about | {"data": about["data"] | known}))
        assert len(np.unique(embedded(run, runs, data=other).labels)) < 3  # a fifth of the classes


def test_classes_learned_from_are_not_tested_when_the_data_grows(stripes, tmp_path):
    grown = tmp_path / "grown"
    for place in (stripes / "train", stripes / "test"):
        shutil.copytree(place, grown, dirs_exist_ok=True)
    given = read(grown)
    result = fit(small_recipe("schedule.epochs=1"), given, tmp_path / "run", cache=tmp_path, progress=False)
    learned = json.loads((result.folder / "run.json").read_text())["data"]["train_classes"]
    before = {given.classes[label] for label in embedded(result.folder, tmp_path / "x").labels.tolist()}
    assert before == {*given.classes} - {*learned}
    for number in range(6):
        shutil.copytree(next(path for path in grown.iterdir() if path.is_dir()), grown / f"new {number}")
    test = embedded(result.folder, tmp_path / "x", data=read(grown))
    after = {test.catalog.classes[label] for label in test.labels.tolist()}
    assert after == before | {f"new {number}" for number in range(6)}


def test_queries_and_gallery_of_their_own(runs, stripes):
    catalog = read(stripes)
    test = catalog.splits["test"]
    splits = {"query": test[::3], "gallery": np.setdiff1d(test, test[::3])}
    parted = Catalog("x", catalog.root, catalog.paths, catalog.labels, catalog.classes, splits)
    evaluation = evaluate_test(embedded(runs / "one", runs, data=parted))
    assert evaluation.retrieval.queries + evaluation.retrieval.without_positive == len(test[::3])
    assert evaluation.test.searched_rows is splits["gallery"] or len(evaluation.test.searched_rows) == len(
        splits["gallery"]
    )
    assert f"among {len(splits['gallery'])} images" in evaluation.text()
    assert evaluation.clustering.assignment.shape == (len(test),)


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
    evaluation = evaluate_test(embedded(runs / "one", runs, data=faces), clustering=False)
    assert evaluation.verification.pairs == 40
    # Against the cosines themselves: the rows of pairs are those of the catalog, not of the test.
    store = PixelStore.build(catalog, runs / "cache", size=36, progress=False)
    vectors = Embedder.load(runs / "one").embed(store, progress=False)
    cosine = (vectors[left] * vectors[right]).sum(1)
    true, false = cosine[torch.from_numpy(same)], cosine[torch.from_numpy(~same)]
    auc = ((true[:, None] > false).double() + 0.5 * (true[:, None] == false).double()).mean()
    assert evaluation.verification.auc == pytest.approx(100 * auc.item(), abs=1e-6)
    assert "pairs     accuracy" in evaluation.text()
    assert "40 pairs in 4 folds" in evaluation.text()
    assert max(map(len, evaluation.text(every_class=True).splitlines())) <= 80


def test_pairs_in_one_fold_are_not_passed_over_in_silence(runs, stripes):
    catalog = read(stripes)
    left, right = catalog.splits["test"][:-1], catalog.splits["test"][1:]
    pairs = VerificationPairs(
        np.zeros(len(left), int), left, right, catalog.labels[left] == catalog.labels[right]
    )
    faces = replace(catalog, splits={"test": catalog.splits["test"]}, pairs=pairs)
    evaluation = evaluate_test(embedded(runs / "one", runs, data=faces), clustering=False)
    assert evaluation.verification is None
    assert evaluation.text().endswith(
        "pairs: not judged; this needs two folds, and both same and different pairs"
    )


def test_mirror_images_are_averaged_in(runs):
    plain, flipped = (embedded(runs / "one", runs, flip=flip) for flip in (False, True))
    run = open_run(runs / "one", cache=runs / "cache", progress=False)
    expected = run.model.embed(run.pixels, rows=run.test.queries, flip=True, progress=False)
    torch.testing.assert_close(flipped.queries, expected)
    assert not torch.allclose(flipped.queries, plain.queries)
    evaluation = evaluate_test(flipped, clustering=False)
    assert evaluation.text().endswith("averaged over each image and its mirror image")
    assert not evaluation.untrained  # training logged it without them
    assert evaluate_test(plain, clustering=False).untrained


@pytest.mark.usefixtures("_undrawn")
def test_an_image_that_cannot_be_read_is_left_out(runs, stripes, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(stripes, moved)
    next(moved.glob("test/plain/*")).write_bytes(b"not an image")
    test = embedded(runs / "one", runs, data=moved)
    assert len(test.queries) == len(test.catalog.splits["test"]) - 1
    evaluation = evaluate_test(test, clustering=False)
    (note,) = json.loads(evaluation.json())["notes"]
    assert note.startswith("1 of 109 images cannot be read, such as test/plain/")
    assert evaluation.text().endswith(f"\n\n{note}")
    assert note in str(render_page({"one": evaluation}))


def test_json_holds_names_that_are_no_utf8(runs, stripes):
    catalog = read(stripes)
    classes = [f"caf\udce9 {name}" for name in catalog.classes]
    strange = replace(catalog, classes=classes)
    text = evaluate_test(embedded(runs / "one", runs, data=strange), clustering=False).json()
    assert {row["class"] for row in json.loads(text.encode())["classes"]} <= set(classes)


def test_what_is_no_run_and_no_model_is_said(runs, tmp_path):
    with pytest.raises(FileNotFoundError, match="no saved embedder"):
        embedded(tmp_path, runs)
    shutil.copytree(runs / "one", tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json: is not valid JSON \(Expecting"):
        embedded(tmp_path / "run", runs)
    (tmp_path / "run" / "run.json").write_text("[]")
    with pytest.raises(ValueError, match=r"run=\[\]: must be a table"):
        embedded(tmp_path / "run", runs)


def test_a_record_tells_its_series_and_facts(runs):
    record = Record.read(runs / "one")
    series = record.logged_series()
    steps, values = series["spread"]
    assert (steps[:4], values[:4]) == ([0, 1, 2, 3], [0.5, 0.4, 0.3, pytest.approx(0.2)])
    assert np.isnan(series["odd_thing"][1][-1])
    assert "beta_histogram" not in series
    assert "warning" not in series
    found = run_facts(record)
    assert found["Loss"] == "batch-all"
    assert found["Data"] == "stripes, 109 images"
    assert {"Seed", "torch", "Device", "Time in training", "Data fingerprint"} <= set(found)


def test_a_table_is_called_by_its_name(tmp_path):
    table = tmp_path / "birds.csv"
    table.write_text("path,label\n1.jpg,auk\n2.jpg,auk\n3.jpg,wren\n4.jpg,wren\n")
    with pytest.warns(UserWarning, match="missing"):
        catalog = read(table)
    test = EmbeddedTest("toy", catalog, QueryGallery(np.arange(4)), torch.eye(4))
    assert evaluate_test(test, clustering=False).headline().startswith("toy on birds.csv: ")
    RunFolder(tmp_path / "run").begin(Recipe(), catalog, "cpu")
    record = Record.read(tmp_path / "run")
    assert run_facts(record)["Data"] == "birds.csv, 4 images"
    (tmp_path / "also.csv").write_bytes(table.read_bytes())
    assert find_data(record).file == "birds.csv"


def test_long_names_keep_the_end_in_which_they_differ(tmp_path):
    classes = [f"Packages/Milk/A-very-long-name-of-a-brand-and-its-{kind}-milk" for kind in ("sour", "oat")]
    catalog = Catalog("toy", tmp_path, list("abcd"), np.array([0, 0, 1, 1]), classes, {})
    test = EmbeddedTest("toy", catalog, QueryGallery(np.arange(4)), torch.eye(4))
    text = evaluate_test(test, clustering=False).text()
    table, confused = text[text.index("worst classes") :].split("most confused")
    for part in (table, confused):
        assert "-sour-milk" in part
        assert "-oat-milk" in part
    assert max(map(len, text.splitlines())) <= 80


def test_a_recovery_is_no_warning(tmp_path):
    log = [
        {"step": 5, "warning": "step 5: collapsed"},
        {"step": 9, "recovery": "step 9: no longer collapsed"},
    ]
    record = Record(tmp_path, Recipe(), {}, log)
    catalog = Catalog("toy", tmp_path, list("abcd"), np.array([0, 0, 1, 1]), ["auk", "wren"], {})
    test = EmbeddedTest("toy", catalog, QueryGallery(np.arange(4)), torch.eye(4), record=record)
    shown = render_health({"one": evaluate_test(test, clustering=False)})
    assert shown == [
        '<p class="warning"><bdi>one</bdi>: step 5: collapsed</p>',
        '<p class="recovery"><bdi>one</bdi>: step 9: no longer collapsed</p>',
    ]


def test_warnings_of_a_run_are_among_its_facts(tmp_path):
    record = Record(tmp_path, Recipe(), {"result": {"warnings": ["collapsed", "no longer"]}}, [])
    assert run_facts(record)["Warnings"] == "collapsed; no longer"


def test_a_run_cut_short_has_fewer_facts(tmp_path):
    record = Record(tmp_path, Recipe(), {}, [])
    assert "Best epoch" not in run_facts(record)
    assert record.logged_series() == {}


def test_only_settings_that_differ_are_told():
    one, two = small_recipe(), small_recipe("loss.name=topk", "loss.k=2", "schedule.epochs=9")
    assert recipe_differences([one, two]) == {
        "loss.name": ["batch-all", "topk"],
        "loss.k": ["–", "2"],
        "schedule.epochs": ["2", "9"],
    }
    assert recipe_differences([one, one]) == {}
