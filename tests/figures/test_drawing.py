"""Drawing by name into files, the style of figures, and that no global setting changes."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from firstpage import figures
from firstpage.data import read
from firstpage.data.splits import split_catalog
from firstpage.evaluation import evaluate
from firstpage.figures import drawing
from firstpage.models import Embedder
from firstpage.recipes import Recipe
from firstpage.runs.folder import fingerprint

THEORY = ["sphere-density", "gradient-variance", "sampled-negatives", "loss-shapes"]
RUNS = ["training", "training-triplets", "group-size"]
EMBEDDINGS = sorted({*figures.names()} - {*THEORY, *RUNS})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Pictures of one color a class, in splits; embeddings near the class's center."""
    root = tmp_path_factory.mktemp("set")
    for number in range(24):
        name = root / ("train" if number < 12 else "test") / f"class{number // 4}" / f"{number}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 16), (40 * (number // 4), 90, 200)).save(name)
    catalog = read(str(root))
    noise = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
    vectors = 2 * np.eye(8, dtype=np.float32)[catalog.labels] + noise
    folder = tmp_path_factory.mktemp("embedded")
    np.savez(folder / "one.npz", embeddings=vectors, labels=catalog.labels, paths=np.array(catalog.paths))
    return catalog, folder / "one.npz"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "topk"
    folder.mkdir()
    (folder / "recipe.toml").write_text(Recipe().toml())
    (folder / "run.json").write_text("{}")
    (folder / "log.jsonl").write_text('{"step": 0, "P@1": 5, "R@1": 5}\n{"step": 9, "P@1": 8, "R@1": 8}\n')
    return folder


def sources(name, run, dataset):
    if name in THEORY:
        return [], None
    return ([run], None) if name in RUNS else ([dataset[1]], str(dataset[0].root))


@pytest.mark.parametrize(
    ("name", "dark"), [("sphere-density", False), *((name, True) for name in figures.names())]
)  # whatever does not ask the style is light
def test_every_figure_is_drawn_into_a_file(name, dark, run, dataset, tmp_path):
    if name == "embedding-map":
        pytest.importorskip("openTSNE", reason="openTSNE is not installed: pip install 'firstpage[tsne]'")
    given, data = sources(name, run, dataset)
    out = tmp_path / "new folder" / "figure.png"
    assert figures.draw(name, given, out, data=data, dark=dark) == f"wrote {out}"
    picture = np.asarray(Image.open(out).convert("RGB")).astype(int)
    background = [int(figures.make_style(dark).background[place : place + 2], 16) for place in (1, 3, 5)]
    assert picture[0, 0].tolist() == background
    drawn = (np.abs(picture - background).sum(axis=2) > 90).mean()
    assert 0.01 < drawn < 0.95  # something is there, and not everywhere
    assert [path.name for path in out.parent.iterdir()] == ["figure.png"]


@pytest.mark.parametrize(("suffix", "first"), [(".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")])
def test_files_are_what_their_names_say(suffix, first, tmp_path):
    figures.draw("sphere-density", [], tmp_path / f"x{suffix}")
    assert (tmp_path / f"x{suffix}").read_bytes().startswith(first)


@pytest.mark.parametrize(
    ("name", "suffix"),
    [(name, ".svg") for name in ("nearest-classes", "training", "loss-shapes")]
    + [("nearest-classes", ".pdf"), ("training", ".png")],
)
def test_the_same_figure_is_the_same_file(name, suffix, run, dataset, tmp_path, monkeypatch):
    given, data = sources(name, run, dataset)
    for number, epoch in enumerate(("0", "1000000000")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)  # matplotlib's clock
        figures.draw(name, given, tmp_path / f"{number}{suffix}", data=data)
    one, two = ((tmp_path / f"{number}{suffix}").read_bytes() for number in range(2))
    assert one == two
    if suffix == ".svg":
        names = re.findall(rb'\bid="([^"]*)"', one)
        assert len(names) == len({*names})
        assert {*re.findall(rb'(?:href="#|url\(#)([^")]*)', one)} <= {*names}


def test_curves_of_a_file_are_those_of_its_test_images(dataset, monkeypatch, tmp_path):
    catalog, path = dataset
    seen = {}
    monkeypatch.setattr(
        drawing,
        "plot_precision_recall",
        lambda curves, style: seen.update(pr=curves) or style.panels()[0],
    )
    monkeypatch.setattr(
        drawing,
        "plot_roc",
        lambda curves, areas, style: seen.update(roc=curves, areas=areas) or style.panels()[0],
    )
    for name in ("precision-recall", "roc"):
        figures.draw(name, [path], tmp_path / "x.svg", data=str(catalog.root))
    test = catalog.splits["test"]
    with np.load(path) as file:
        expected = evaluate(
            torch.from_numpy(file["embeddings"][test]), torch.from_numpy(catalog.labels[test])
        )
    assert all(one.equal(two) for one, two in zip(seen["pr"]["one"], expected.pr_curve, strict=True))
    assert all(one.equal(two) for one, two in zip(seen["roc"]["one"], expected.roc_curve, strict=True))
    monkeypatch.undo()
    assert seen["areas"] == {"one": expected.auc}  # not that of the curve, which is coarser
    label = figures.plot_roc({"one": expected.roc_curve}, seen["areas"]).axes[0].lines[0].get_label()
    assert label == f"one (AUC {expected.auc:.2f})"


@pytest.fixture
def query_gallery(tmp_path):
    """A catalog of queries and a gallery, and its embeddings."""
    generator = torch.Generator().manual_seed(4)
    for number in range(24):
        name = tmp_path / "set" / ("query" if number % 3 else "gallery") / f"{number // 6}" / f"{number}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(name)
    catalog = read(str(tmp_path / "set"))
    vectors, labels = torch.randn(24, 4, generator=generator), torch.from_numpy(catalog.labels)
    np.savez(
        tmp_path / "x.npz", embeddings=vectors.numpy(), labels=labels.numpy(), paths=np.array(catalog.paths)
    )
    query, gallery = (torch.from_numpy(catalog.splits[name]) for name in ("query", "gallery"))
    return catalog, (vectors[query], labels[query], vectors[gallery], labels[gallery])


def test_queries_search_their_gallery_where_the_dataset_has_one(query_gallery, tmp_path, monkeypatch):
    catalog, searched = query_gallery
    seen = {}
    for name in ("plot_roc", "plot_nearest_classes"):
        monkeypatch.setattr(drawing, name, lambda drawn, *_, style: seen.update(drawn) or style.panels()[0])
    expected = evaluate(*searched)
    figures.draw("roc", [tmp_path / "x.npz"], tmp_path / "x.svg", data=str(catalog.root))
    assert seen["x"][1].equal(expected.roc_curve[1])
    figures.draw("nearest-classes", [tmp_path / "x.npz"], tmp_path / "x.svg", data=str(catalog.root))
    same, other = seen["x"]
    assert len(same) == expected.queries
    assert 100 * (same > other).double().mean().item() == pytest.approx(expected.precision[1])


def test_lists_show_queries_and_then_their_gallery(query_gallery, tmp_path, monkeypatch):
    from firstpage.figures import EmbeddedImages

    catalog, searched = query_gallery
    shown = []

    def load_image(self, position, side=64):
        shown.append(int(self.rows[position]))
        return np.zeros((4, 4, 3), np.uint8)

    monkeypatch.setattr(EmbeddedImages, "image", load_image)
    figures.draw("retrieved-lists", [tmp_path / "x.npz"], tmp_path / "x.png", data=str(catalog.root))
    query, gallery = catalog.splits["query"], catalog.splits["gallery"]
    first = evaluate(*searched, ks=(1,)).first[:, 0]
    lists = [shown[start : start + 9] for start in range(0, len(shown), 9)]  # a gallery of 8
    assert len(lists) == 8
    for asked, *found in lists:
        assert sorted(found) == sorted(gallery.tolist())
        assert found[0] == gallery[first[query.tolist().index(asked)]]


def test_a_model_embeds_the_dataset_first(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    catalog, _ = dataset
    model = Embedder.create(backbone="small", dim=4, stored=16, crop=16)
    model.save(tmp_path / "run" / "best")
    with pytest.raises(ValueError, match="does not record its data: pass the dataset with --data"):
        figures.read_embeddings(tmp_path / "run")
    found = figures.read_embeddings(tmp_path / "run", catalog)
    assert found.rows.tolist() == list(range(24))
    assert found.labels.tolist() == catalog.labels.tolist()
    assert found.embeddings.shape == (24, 4)
    same = found.embeddings[found.labels == 3]
    assert torch.allclose(same, same[:1].expand_as(same), atol=1e-5)  # pictures of a class are alike here


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_a_run_shows_what_it_held_out_of_its_own_data(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "set"
    for number in range(20):
        (root / f"{number // 4}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (12 * number, 90, 9)).save(root / f"{number // 4}" / f"{number}.png")
    table = tmp_path / "birds.csv"
    table.write_text("path,label\n" + "".join(f"set/{n // 4}/{n}.png,{n // 4}\n" for n in range(20)))
    (tmp_path / "other.csv").write_text("path,label\nset/0/0.png,a\n")
    catalog = read(str(root if kind == "folder" else table))
    Embedder.create(backbone="small", dim=4, stored=16, crop=16).save(tmp_path / "run" / "best")
    recipe = Recipe().changed(["train.protocol=paper"])
    (tmp_path / "run" / "recipe.toml").write_text(recipe.toml())
    about = {"name": kind, "root": str(catalog.root), "fingerprint": fingerprint(catalog)}
    (tmp_path / "run" / "run.json").write_text(json.dumps({"data": about}))
    split = split_catalog(catalog, np.ones(20, bool), recipe.train)
    found = figures.read_embeddings(tmp_path / "run")
    assert found.split("test").rows.tolist() == split.test.queries.tolist()
    assert found.split("train").rows.tolist() == split.train.tolist()
    assert len(found.split("test").rows) == 8
    (root / "0" / "0.png").rename(root / "0" / "moved.png")
    table.unlink()
    with pytest.raises(FileNotFoundError, match=r"was moved or changed: pass the dataset with --data"):
        figures.read_embeddings(tmp_path / "run")


@pytest.mark.parametrize("splits", [False, True])
def test_a_fair_run_shows_what_it_learned_chose_by_and_never_saw(splits, tmp_path, monkeypatch):
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    for number in range(48):
        part = ("test" if number < 12 else "train") if splits else ""
        picture = tmp_path / "set" / part / f"{number // 4}" / f"{number}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (5 * number, 90, 9)).save(picture)
    catalog = read(str(tmp_path / "set"))
    recipe = Recipe.of({"train": {"protocol": "fair", "folds": 3, "fold": 1, "seed": 5}})
    Embedder.create(backbone="small", dim=4, stored=16, crop=16).save(tmp_path / "run" / "best")
    (tmp_path / "run" / "recipe.toml").write_text(recipe.toml())
    about = {"name": "folder", "root": str(catalog.root), "fingerprint": fingerprint(catalog)}
    (tmp_path / "run" / "run.json").write_text(json.dumps({"data": about}))
    split = split_catalog(catalog, np.ones(48, bool), recipe.train)
    found = figures.read_embeddings(tmp_path / "run")
    assert len(split.train) < len(catalog) - len(split.test.queries)
    assert found.split("train").rows.tolist() == sorted(split.train.tolist())
    assert found.split("val").rows.tolist() == sorted(split.validation.queries.tolist())
    assert found.split("test").rows.tolist() == sorted(split.test.queries.tolist())
    (tmp_path / "run" / "run.json").write_text(json.dumps({"data": {"name": "x", "root": "gone"}}))
    strange = figures.read_embeddings(tmp_path / "run", catalog)  # of which the run learned nothing
    assert strange.catalog.splits == catalog.splits


def test_a_dataset_without_splits_is_shown_whole(tmp_path):
    for number in range(4):
        (tmp_path / "set" / f"{number // 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "set" / f"{number // 2}" / f"{number}.png")
    catalog = read(str(tmp_path / "set"))
    np.savez(tmp_path / "x.npz", embeddings=np.eye(4), labels=catalog.labels, paths=np.array(catalog.paths))
    figures.draw("class-similarity", [tmp_path / "x.npz"], tmp_path / "x.svg", data=str(tmp_path / "set"))
    assert (tmp_path / "x.svg").stat().st_size > 1000
    with pytest.raises(ValueError, match="split='test': the dataset has no splits: give the folder of a run"):
        figures.draw("train-similarity", [tmp_path / "x.npz"], tmp_path / "y.svg", data=str(tmp_path / "set"))


def test_two_files_of_one_name_keep_apart(dataset, tmp_path):
    _, path = dataset
    copy = tmp_path / "one.npz"
    copy.write_bytes(path.read_bytes())
    figures.draw("nearest-classes", [path, copy], tmp_path / "x.png")
    one_panel = tmp_path / "y.png"
    figures.draw("nearest-classes", [path], one_panel)
    assert Image.open(tmp_path / "x.png").size != Image.open(one_panel).size


@pytest.mark.parametrize("name", THEORY)
def test_theory_takes_nothing(name, run, tmp_path):
    with pytest.raises(ValueError, match=f"{name}: takes no run or file, but got 1"):
        figures.draw(name, [run], tmp_path / "x.png")


@pytest.mark.parametrize("name", RUNS)
def test_run_figures_want_runs(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name}: name at least one run folder"):
        figures.draw(name, [], tmp_path / "x.png")


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embedding_figures_want_files(name, tmp_path):
    with pytest.raises(ValueError, match=rf"{name}: (name at least|takes) one \.npz"):
        figures.draw(name, [], tmp_path / "x.png")


@pytest.mark.parametrize("name", ["retrieved-lists", "train-similarity"])
def test_what_cannot_do_without_the_dataset_asks_for_it(name, dataset, tmp_path):
    with pytest.raises(ValueError, match=r"pass the dataset.*\(--data\)"):
        figures.draw(name, [dataset[1]], tmp_path / "x.png")


def test_unknown_kinds_of_files_are_refused_before_any_work(tmp_path):
    with pytest.raises(ValueError, match=r"x\.jpg: sphere-density must be written as \.png, \.svg, \.pdf"):
        figures.draw("sphere-density", [], tmp_path / "x.jpg")
    with pytest.raises(ValueError, match=r"x\.svg: retrieved-lists must be written as \.png"):
        figures.draw("retrieved-lists", [], tmp_path / "x.svg")
    with pytest.raises(ValueError, match=r"cannot write '\.svg': choose \.png$"):
        figures.save(Image.new("RGB", (4, 4)), tmp_path / "x.svg")
    assert not list(tmp_path.iterdir())


def test_places_that_no_file_can_have_are_refused_before_any_work(tmp_path):
    (tmp_path / "note").write_text("x")
    with pytest.raises(ValueError, match=r"note is a file, not a folder: choose another path"):
        figures.draw("roc", ["nowhere.npz"], tmp_path / "note" / "x.png")


@pytest.mark.parametrize("name", [*RUNS, *THEORY])
def test_a_dataset_that_a_figure_does_not_need_is_refused(name, run, tmp_path):
    given = [run] if name in RUNS else []
    with pytest.raises(ValueError, match=f"^{name}: needs no dataset: omit --data and --split$"):
        figures.draw(name, given, tmp_path / "x.png", data="glyphs", split="test")
    with pytest.raises(ValueError, match=r"omit --split$"):
        figures.draw(name, given, tmp_path / "x.png", split="test")


def luminance(color):
    """Relative luminance of WCAG 2."""
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_ink_and_curves_stand_out_from_the_paper(dark):
    style = figures.make_style(dark)

    def contrast(color):
        pair = sorted([luminance(color), luminance(style.background)])
        return (pair[1] + 0.05) / (pair[0] + 0.05)

    assert contrast(style.foreground) >= 7
    assert min(contrast(color) for color in style.colors) >= 2.2
    curves = [style.curve(number) for number in range(6)]
    assert len({str(curve["linestyle"]) for curve in curves}) == 6  # told apart without color, too
    assert len({str(style.curve(number)) for number in range(36)}) == 36


def test_figures_are_drawn_in_threads_and_leave_settings_alone():
    """In a process of its own: importing is light, pyplot is never imported, and no setting changes."""
    program = """
import sys, threading, matplotlib
names = [name for name in matplotlib.rcParams if name != "backend"]  # reading that would import pyplot
before = [matplotlib.rcParams[name] for name in names]
from firstpage import figures
assert not {"matplotlib.pyplot", "openTSNE", "sklearn", "torch._dynamo"} & {*sys.modules}
found = []
def work(dark):
    figure = figures.plot_gradient_variance((0.05,), style=figures.make_style(dark))
    found.append((dark, figure.get_facecolor()[0] < 0.5))
threads = [threading.Thread(target=work, args=(bool(n % 2),)) for n in range(6)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(found) == 6 and all(dark == black for dark, black in found), found
assert "matplotlib.pyplot" not in sys.modules
assert [matplotlib.rcParams[name] for name in names] == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_importing_the_package_is_light():
    program = "import sys, firstpage; assert not {'torch', 'matplotlib', 'numpy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_every_name_is_there_and_is_no_module():
    for name in figures.__all__:
        assert callable(getattr(figures, name)), name
