"""The papers' tables: every file is sound, and one of each dataset runs on a small copy of its layout."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from firstpage import cli
from firstpage.compare import describe, find, names, run_cells
from firstpage.compare.summary import summarize
from firstpage.data import read
from firstpage.evaluation.metrics import metric_names
from firstpage.models import Embedder, backbones
from firstpage.training.criteria import make_criteria
from firstpage.training.ranks import KS

TABLES = {name: find(name) for name in names()}
TINY = [
    *("model.backbone=small", "model.options={}", "model.dim=8", "model.stored=32", "model.crop=32"),
    *("augment.size=32", "batch.size=12", "batch.images_per_class=3", "batch.chunk=0", "schedule.epochs=1"),
    *("train.compile=false", "train.evaluate_every=1", "train.folds=2", "train.store=raw"),
]


@pytest.mark.parametrize("name", names())
def test_a_table_of_the_papers_is_sound(name):
    table = TABLES[name]
    untrained = table.rows[0].recipe
    assert (untrained.schedule.epochs, untrained.model.head) == (0, "none")
    assert describe()[name].endswith(".")
    assert set(table.metrics) <= {*metric_names(KS), "NMI", "F1", "accuracy"}
    small = {"backbone": "small", "options": {}, "stored": 48, "crop": None}
    models = {}
    for row in table.rows:
        recipe = row.recipe
        assert recipe.model.backbone in backbones.names()
        assert recipe.model.weights is None  # the user names them
        assert recipe.batch.sampler == "group"
        assert recipe.batch.images > recipe.batch.images_per_class
        heads = (recipe.model.head, recipe.model.learners)
        if heads not in models:
            models[heads] = Embedder(replace(recipe.model, **small))
        make_criteria(recipe.loss, models[heads], classes=20, images=100)
        assert row.recipe.schedule.epochs or row is table.rows[0]
        for setting, values in table.tune.searched.items():  # a search may find what the row has
            own = getattr(recipe.optimizer, setting.removeprefix("optimizer."))
            assert values["low"] <= own <= values["high"], f"{row.name}: {setting}"
        for kind in ("R@", "P@"):  # a misread figure is seldom in order
            given = {int(key[2:]): value for key, value in row.paper.items() if key.startswith(kind)}
            values = [given[k] for k in sorted(given)]
            assert values == sorted(values, reverse=kind == "P@"), f"{row.name}: {row.paper}"
        assert all(0 < value <= 100 for value in row.paper.values())
        assert not row.paper or row.differs


def test_every_paper_and_every_dataset_has_its_tables():
    assert {name for name in names() if name.startswith("sampling-wisely")} == {
        f"sampling-wisely-{number}-{data}"
        for number in ("1", "supplement-1")
        for data in ("cub", "cars", "sop")
    }
    assert {f"sampling-matters-{number}" for number in range(1, 8)} <= TABLES.keys()
    assert {f"ranked-list-{number}" for number in range(2, 8)} <= TABLES.keys()
    assert {f"easy-positive-2-{data}" for data in ("cub", "cars", "sop", "inshop")} <= TABLES.keys()
    best = {row.name: row.paper["R@1"] for row in TABLES["sampling-wisely-1-cub"].rows[1:]}
    assert (best["Top-k precision, ours"], best["Proxy-NCA"]) == (61.07, 53.78)


# Small copies of the layouts: eight classes of four images, half of them for the test


def draw(root, names):
    """Write images of 40 pixels, those of a folder alike."""
    for number, name in enumerate(names):
        random = np.random.default_rng(number // 4)
        color = random.integers(40, 215, 3)
        pixels = np.clip(color + np.random.default_rng(number).normal(0, 20, (40, 40, 3)), 0, 255)
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(file, format="PNG")


def write(root, files):
    for name, lines in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("".join(f"{line}\n" for line in lines))


def cub(root):
    labels = [label for label in (1, 2, 3, 4, 101, 102, 103, 104) for _ in range(4)]
    paths = [f"{label:03d}.Bird/{row}.jpg" for row, label in enumerate(labels)]
    numbered = list(enumerate(paths, start=1))
    files = {
        "images.txt": [f"{row} {path}" for row, path in numbered],
        "image_class_labels.txt": [f"{row} {label}" for row, label in enumerate(labels, start=1)],
        "classes.txt": [f"{label} {label:03d}.Bird" for label in range(1, 105)],
        "bounding_boxes.txt": [f"{row} 0 0 40 40" for row, _ in numbered],
    }
    write(root, files)
    draw(root / "images", paths)


def cars(root):
    labels = [label for label in (1, 2, 3, 4, 99, 100, 101, 102) for _ in range(4)]
    paths = [f"car_ims/{row:06d}.jpg" for row in range(len(labels))]
    draw(root, paths)
    columns = {"relative_im_path": paths, "class": labels}
    columns |= {f"bbox_{side}": [1 if side.endswith("1") else 40] * 32 for side in ("x1", "y1", "x2", "y2")}
    rows = np.empty((1, len(labels)), [(name, object) for name in columns])
    for name, values in columns.items():
        rows[name][0] = values
    classes = np.array([f"Car {number}" for number in range(1, 197)], object)
    savemat(root / "cars_annos.mat", {"annotations": rows, "class_names": classes})


def sop(root):
    paths = [f"chair_final/{row // 4}_{row % 4}.JPG" for row in range(32)]
    lines = [f"{row} {row // 4 + 1} 1 {path}" for row, path in enumerate(paths, start=0)]
    head = "image_id class_id super_class_id path"
    write(root, {"Ebay_train.txt": [head, *lines[:16]], "Ebay_test.txt": [head, *lines[16:]]})
    draw(root, paths)


def inshop(root):
    paths = [f"img/WOMEN/Dresses/id_{row // 4:08d}/{row:02d}_front.jpg" for row in range(32)]
    status = ["train"] * 16 + ["query", "gallery"] * 8
    lines = [f"{path} id_{row // 4:08d} {status[row]}" for row, path in enumerate(paths)]
    head = ["32", "image_name item_id evaluation_status"]
    write(root, {"Eval/list_eval_partition.txt": [*head, *lines]})
    draw(root / "Img", paths)


def hotels50k(root):
    head = "image_id,hotel_id,image_url,image_source,upload_timestamp"
    train = [f"{row},{row // 4},http://x/{row}.jpg,expedia," for row in range(16)]
    test = [f"{row},{row - 16},http://x/{row}.jpg,traffickcam," for row in range(16, 20)]
    write(root, {"train_set.csv": [head, *train], "test_set.csv": [head, *test]})
    draw(root / "images/train", [f"1/{row // 4}/expedia/{row}.jpg" for row in range(16)])
    draw(root / "images/test/unoccluded", [f"1/{row}/traffickcam/{row + 16}.jpg" for row in range(4)])


LAYOUTS = {
    "cub": ("sampling-wisely-1-cub", cub),
    "cars": ("easy-positive-1-cars", cars),
    "sop": ("ranked-list-2", sop),
    "inshop": ("easy-positive-2-inshop", inshop),
    "hotels50k": ("easy-positive-3", hotels50k),
}


def run(name, data, out, **options):
    """Train a table on a small copy, in small, and return what was measured; nothing may fail."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a small copy is small
        catalog = read(data)
    table = TABLES[name].changed(TINY)
    options |= {"cache": out / "cache", "progress": False, "device": "cpu", "show": str}
    assert run_cells(table, catalog, out, protocols=table.protocols, **options)
    measured = summarize(table, catalog, out, [0], table.protocols)
    assert [each.errors for each in measured] == [[]] * len(table.rows)
    return catalog, table, measured


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_table_runs_on_a_copy_of_the_layout(kind, tmp_path):
    name, write_copy = LAYOUTS[kind]
    write_copy(tmp_path / "data")
    catalog, table, measured = run(name, tmp_path / "data", tmp_path / "out")
    assert catalog.name == kind
    assert all(each.values(metric) for each in measured for metric in table.metrics)


def test_faces_are_trained_on_casia_and_verified_on_lfw(tmp_path, capsys):
    draw(tmp_path / "casia", [f"{45 + row // 4:07d}/{row % 4:03d}.jpg" for row in range(32)])
    catalog, table, measured = run("sampling-matters-7", tmp_path / "casia", tmp_path / "out", keep=True)
    assert (catalog.name, table.protocols) == ("casia", ("fair",))
    assert all(each.values("MAP@R") for each in measured)
    people = ["Ann_Lee", "Bo_Ek", "Cy_Fox"]
    draw(tmp_path / "lfw", [f"{name}/{name}_{number:04d}.jpg" for name in people for number in range(1, 5)])
    fold = ["Ann_Lee 1 2", "Bo_Ek 2 3", "Ann_Lee 1 Bo_Ek 4", "Bo_Ek 1 Cy_Fox 2"]
    write(tmp_path / "lfw", {"pairs.txt": ["2 2", *fold, *fold]})
    model = tmp_path / "out/runs/margin-256-dimensions-fair-0"  # as the file of the table says
    with pytest.raises(SystemExit):
        cli.main(
            ["evaluate", str(model), "--data", str(tmp_path / "lfw"), "--no-clustering", "--device", "cpu"]
        )
    assert "accuracy" in capsys.readouterr().out


def test_tables_are_listed_and_found_by_name(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        cli.main(["list", "tables"])
    shown = capsys.readouterr().out
    assert "easy-positive-3                    Easy Positive, table 3: Hotels-50K, ResNet-50.\n" in shown
    with pytest.raises(SystemExit):
        cli.main(["compare", "easy-positive-4", "--data", "glyphs"])
    assert "'easy-positive-4': no such table; did you mean 'easy-positive-3'?" in capsys.readouterr().err
