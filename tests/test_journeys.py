"""The first hour of a user, on small copies of five kinds of dataset: check, train, evaluate, report."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from firstpage import cli
from firstpage.runs.record import Record
from firstpage.runs.run_data import read_data

TINY = {
    "model": ("backbone=small", "dim=8", "stored=32", "crop=28"),
    "batch": ("size=8", "images_per_class=2"),
    "schedule": ("epochs=1",),
}
SETTINGS = [f"--set={section}.{key}" for section, keys in TINY.items() for key in keys]


@pytest.fixture(autouse=True)
def _small(tmp_path, monkeypatch):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(capsys):
    """Returns what runs a command and gives back what the user sees."""

    def run(*command, code=0):
        with pytest.raises(SystemExit) as end:
            cli.main([str(part) for part in command])
        seen = capsys.readouterr()
        assert end.value.code == code, seen
        return seen.out + seen.err

    return run


def photos(root, names):
    """Writes an image for each path: noise, which no check takes for a copy of another."""
    for seed, name in enumerate(names):
        file = Path(root, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).resize((40, 40), Image.Resampling.NEAREST).save(file)


def journey(run, data, *options, test=""):
    """Checks, trains, evaluates and reports; returns what each showed."""
    check = run("data", "check", data, *options, *SETTINGS)
    assert "\nOK\n" in check
    train = run("train", "--data", data, *options, "--out", "run", "--device", "cpu", *SETTINGS)
    evaluate = run("evaluate", "run", "--device", "cpu", "--no-clustering", *([test] if test else []))
    assert "untrained" in evaluate or test
    shown = run("report", "run", "--device", "cpu", "--no-clustering", *([test] if test else []))
    assert "wrote run/report.html\n" in shown
    page = Path("run/report.html").read_text(encoding="utf-8")
    return check, train, evaluate, page


def test_a_folder_that_was_mended_and_moved_is_not_tested_on_what_it_was_trained_on(run):
    photos("photos", [f"{kind}/{number}.jpg" for kind in "abcdefghijkl" for number in range(4)])
    run("train", "photos", "--out", "run", "--device", "cpu", "--set=model.backbone=small", *SETTINGS)
    assert ": 8 queries" in run("evaluate", "run", "--device", "cpu")
    Path("photos/a/0.jpg").unlink()
    Path("photos").rename("moved")
    shown = run("evaluate", "run", "--data", "moved", "--device", "cpu")
    assert "most classes have the names of classes that it was trained on, which are left out" in shown
    trained = set(Record.read("run").about["data"]["train_classes"])
    others = [path for path in Path("moved").glob("*/*.jpg") if path.parent.name not in trained]
    assert f"{len(others)} queries" in shown
    assert len(others) == 8
    shown = run("calibrate", "run", "--data", "moved", "--device", "cpu")
    assert f"{len(others)} images of {12 - len(trained)} classes" in shown
    again = run(
        "train", "moved", "--out", "run", "--device", "cpu", "--set=model.backbone=small", *SETTINGS, code=2
    )
    assert "contains a run on other data, 'folder' with 48 images in" in again
    assert "not these 47: nothing was changed" in again


def test_few_classes_and_a_run_that_was_cut_are_told(run):
    photos("photos", [f"{kind}/{number}.jpg" for kind in "abcde" for number in range(8)])
    small = [*SETTINGS, "--set=model.backbone=small", "--set=batch.size=6"]
    shown = run("train", "photos", "--out", "run", "--device", "cpu", *small)
    assert "selecting on the same images, as classes are too few to hold some out" in shown
    about = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps({key: about[key] for key in about if key != "result"}))
    told = "the training is not finished: this is its best model so far"
    assert told in run("evaluate", "run", "--device", "cpu")
    run("report", "run", "--device", "cpu", "--no-clustering")
    assert told in Path("run/report.html").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:training from random weights, as there are none of ImageNet")
def test_a_folder_of_photographs_without_an_option(run, monkeypatch):
    """Settings are chosen, a run folder too; the report has the untrained network beside the trained one."""
    monkeypatch.setattr("firstpage.training.defaults.EPOCHS", (1, 1))
    photos("photos", [f"{kind}/{number}.jpg" for kind in "abcdefgh" for number in range(4)])
    chosen = run("recipe", "--data", "photos")
    for line in ('backbone = "small"', 'score = "log"', "margin = 0.5", "size = "):
        assert f"\n{line}" in chosen
    shown = run("train", "photos")
    assert "untrained" in shown
    assert "model in runs/photos/best" in shown
    recipe = Record.read(Path("runs/photos")).recipe
    assert (recipe.model.backbone, recipe.loss["score"], recipe.batch.images_per_class) == (
        "small",
        "log",
        16,
    )
    assert "wrote runs/photos/report.html" in run("report", "runs/photos")
    assert "untrained" in Path("runs/photos/report.html").read_text(encoding="utf-8")
    assert "photoz" in run("train", "photoz", code=2)  # neither a recipe nor data
    # What is wrong is told before what differs from the run that is there.
    assert "did you mean 'topk'" in run("train", "photos", "--set=loss.name=tokp", code=2)
    assert "no setting 'nam'" in run("train", "photos", "--set=loss.nam=rll", code=2)


def test_groceries_in_nested_folders(run):
    kinds = [f"Fruit/Apple/{name}" for name in ("Gala", "Pink-Lady", "Fuji")]
    kinds += [f"Fruit/{name}" for name in ("Kiwi", "Lemon", "Lime")] + [f"Dairy/Milk/{n}" for n in "ABC"]
    splits = {"train": 3, "validation": 2}
    photos(
        "groceries",
        [f"{s}/{kind}/{n}.jpg" for s, count in splits.items() for kind in kinds for n in range(count)],
    )
    check, train, evaluate, page = journey(run, "groceries")
    note = "9 classes in 2 groups; classes are the folders that hold images, such as 'Fruit/Lime'"
    assert note in check
    assert note in train
    assert "train: 27 images, 9 classes\n  val: 18 images, 9 classes" in check
    assert "training on 27 images of 9 classes, selecting on 18 of 9" in train
    assert "18 queries among one another, 9 classes, fair protocol" in evaluate
    assert "Fruit/Apple/Gala" in page
    top = run("data", "check", "groceries", "--classes", "top", "--set=batch.size=6")
    assert "  2 classes: the outermost folders, whatever folders are in them\n" in top


def test_products_named_by_their_files(run):
    names = [f"{number % 3}/{100 + number}_{image}.jpg" for number in range(14) for image in range(3)]
    photos("products", names)
    pattern = r"(\d+)_"
    check, train, evaluate, _ = journey(run, "products", "--classes", pattern)
    assert "14 classes in 3 groups; classes are what '(\\\\d+)_' finds in file names, such as '113'" in check
    assert "testing on 9 of 3" in train
    assert json.loads(Path("run/run.json").read_text())["data"]["classes"] == pattern
    assert "9 queries among one another, 3 of 14 classes" in evaluate
    Path("products").rename("moved")  # the run knows what its classes were
    assert read_data(Record.read("run"), "moved").classes[0] == "100"
    assert "fits no file name" in run("data", "check", "moved", "--classes", "x(.)", code=2)


def test_pedestrians_with_cameras_in_a_table(run):
    rows = ["path,label,split,camera"]
    for person in range(12):
        for image in range(4):
            split = "train" if person < 8 else "query" if image == 0 else "gallery"
            rows.append(f"images/{person}_{image}.jpg,person {person},{split},c{image // 2}")
    photos(".", [row.split(",")[0] for row in rows[1:]])
    Path("people.csv").write_text("\n".join(rows))
    check, train, evaluate, page = journey(run, "people.csv", test="--exclude-same=camera")
    assert "query: 4 images, 4 classes\n  gallery: 12 images, 4 classes\n  further columns: camera" in check
    assert "testing on 4 of 4" in train
    note = "images with the camera of a query are no results of it"
    assert note in evaluate
    assert note in page
    wrong = run("evaluate", "run", "--exclude-same", "color", code=2)
    assert "'color': catalog 'csv' has no such column; its further columns are camera" in wrong


def test_faces_with_pairs(run):
    people = [f"Person_{letter}" for letter in "ABCDEFGHIJ"]
    names = [f"{person}/{person}_{n:04}.jpg" for person in people for n in (1, 2, 3)]
    photos("lfw", names)
    photos("faces", [f"{person}/{n}.png" for person in "abcdefghij" for n in range(3)])
    folds = [
        line
        for fold in range(2)
        for line in (*(f"{people[fold * 5 + n]}\t1\t2" for n in range(2)),
                     *(f"{people[fold * 5 + n]}\t1\t{people[fold * 5 + n + 1]}\t2" for n in range(2)))
    ]  # fmt: skip
    Path("lfw/pairs.txt").write_text("\n".join(["2\t2", *folds]) + "\n")
    assert "lfw in lfw: 30 images, 10 classes" in run("data", "check", "lfw")
    journey(run, "faces")
    verified = run("evaluate", "run", "--data", "lfw", "--device", "cpu", "--no-clustering")
    assert "30 queries among one another, 10 classes" in verified
    assert "pairs     accuracy" in verified


def test_handwritten_characters(run):
    names = [f"{a}/character{c:02}/{n}.png" for a in ("Greek", "Latin") for c in range(7) for n in range(3)]
    photos("characters", names)
    check, _, evaluate, page = journey(run, "characters")
    assert "14 classes in 2 groups; classes are the innermost folders, such as 'Latin/character06'" in check
    assert "9 queries among one another, 3 of 14 classes" in evaluate
    assert "untrained" in page
