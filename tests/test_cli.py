"""The command line, as a person meets it."""

import csv
import errno
import json
import os
import subprocess
import sys
import tomllib
import warnings

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

import firstpage
from firstpage import cli, data, figures, losses, recipes, training
from firstpage.data.locking import exclusive
from firstpage.errors import UserError
from firstpage.models import Embedder, backbones
from firstpage.recipes import Recipe
from firstpage.runs.folder import RunFolder
from firstpage.training.result import Result


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    output = capsys.readouterr()
    return end.value.code, output.out, output.err


FEW = "--set=batch.size=4"  # eight classes of two images are too few for the default


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def birds(tmp_path):
    """Eight classes of two images."""
    random = np.random.default_rng(0)
    for name in ("auk", "coot", "crow", "finch", "gull", "rook", "swan", "wren"):
        (tmp_path / "birds" / name).mkdir(parents=True)
        for image in ("1.png", "2.png"):
            pixels = random.integers(0, 256, (40, 40, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "birds" / name / image)
    return tmp_path / "birds"


def test_get_prints_what_was_done(capsys, tmp_path):
    code, out, err = run(capsys, "data", "get", "casia", str(tmp_path))
    assert (code, err) == (0, "")
    assert out.startswith("casia: its publisher offers it at http")


def test_check_as_text_or_json_with_a_figure(capsys, tmp_path, birds):
    code, out, _ = run(capsys, "data", "check", str(birds), FEW)
    assert code == 0
    assert "16 images, 8 classes" in out
    figure = tmp_path / "classes.png"
    code, out, _ = run(capsys, "data", "check", str(birds), FEW, "--json", "--figure", str(figure))
    assert code == 0
    assert json.loads(out)["images"] == 16
    assert Image.open(figure).size[0] > 100


def test_check_that_finds_a_fault_is_code_1(capsys, birds):
    (birds / "auk" / "3.png").write_bytes(b"not an image")
    code, out, _ = run(capsys, "data", "check", str(birds), FEW)
    assert code == 1
    assert "auk/3.png" in out


def test_embed_takes_images_without_labels_and_training_does_not(capsys, tmp_path, birds):
    Embedder.create(backbone="small", dim=4, stored=48).save(tmp_path / "model")
    out = tmp_path / "vectors.npz"
    code, *_ = run(capsys, "embed", str(tmp_path / "model"), str(birds / "auk"), str(out), "--device", "cpu")
    assert code == 0
    with np.load(out) as file:
        assert file["paths"].tolist() == ["1.png", "2.png"]
        assert file["labels"].tolist() == [0, 0]
        assert file["classes"].tolist() == ["auk"]
    code, _, err = run(capsys, "train", "--data", str(birds / "auk"), "--out", str(tmp_path / "run"))
    assert code == 2
    assert "2 images are outside class folders; move them to auk/<class>/<image>.jpg, or," in err


def test_embed_refuses_a_model_that_gives_nan(capsys, tmp_path, birds):
    model = Embedder.create(backbone="small", dim=4, stored=48)
    model.heads[0][-1].bias.data.fill_(float("nan"))
    model.save(tmp_path / "model")
    out = tmp_path / "vectors.npz"
    code, _, err = run(capsys, "embed", str(tmp_path / "model"), str(birds), str(out), "--device", "cpu")
    assert code == 2
    assert "model: embeds 16 of 16 images as NaN or infinity, such as 'auk/1.png', 'auk/2.png'" in err
    assert not out.exists()


def test_check_tells_warnings_once_in_its_report(capsys, birds):
    (birds / "empty").mkdir()
    code, out, err = run(capsys, "data", "check", str(birds), FEW)
    assert code == 0
    assert (out + err).count("1 of 9 classes have no image") == 1
    _, out, err = run(capsys, "data", "check", str(birds), FEW, "--json")
    assert len(json.loads(out)["warnings"]) == 1
    assert "warning" not in err


@pytest.mark.filterwarnings("default")
def test_warnings_are_one_line_and_told_once(capsys, monkeypatch):
    def get(name, path):
        for line in (None, None):
            warnings.warn(f"{name} has\na fault", stacklevel=2)
            warnings.warn_explicit("of another", UserWarning, "elsewhere.py", 1, registry=line)
        return "got"

    monkeypatch.setattr("firstpage.data.download.download_dataset", get)
    with pytest.warns(UserWarning, match="of another") as others:
        code, out, err = run(capsys, "data", "get", "cub", "birds")
    assert (code, out, err) == (0, "got\n", "firstpage: warning: cub has a fault\n")
    assert len(others) == 2


def test_errors_of_the_system_come_with_a_remedy(capsys, tmp_path, birds, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    code, _, err = run(capsys, "data", "get", "glyphs", str(file / "glyphs"))
    assert (code, err) == (2, f"firstpage: {file}: file exists: choose another path\n")
    small = ["--set", "batch.size=8", "--set", "model.backbone=small"]
    code, _, err = run(capsys, "train", "--data", str(birds), "--out", str(file), *small)
    assert code == 2
    assert err == f"firstpage: {file / 'run.json'}: {file} is a file, not a folder: choose another path\n"
    long = tmp_path / ("x" * 230)
    code, _, err = run(capsys, "data", "get", "glyphs", str(long))
    assert (code, err) == (2, f"firstpage: {long}: file name too long: choose another path\n")

    def refuse(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a place")

    monkeypatch.setattr("firstpage.data.download.download_dataset", refuse)
    code, _, err = run(capsys, "data", "get", "cub", "birds")
    assert (code, err) == (2, "firstpage: a place: permission denied: choose another path\n")


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "full: make room"), OSError(errno.ENOSPC, "full", "x"), OSError("no answer")],
)
def test_words_of_our_own_stay(capsys, monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr("firstpage.data.download.download_dataset", refuse)
    assert run(capsys, "data", "get", "cub", "birds") == (2, "", f"firstpage: {error}\n")


def test_check_refuses_a_figure_that_cannot_be_written_before_it_looks(capsys, tmp_path, birds):
    (tmp_path / "file").touch()
    code, out, err = run(capsys, "data", "check", str(birds), FEW, "--figure", str(tmp_path / "file/x.png"))
    assert (code, out) == (2, "")
    assert err.endswith("file is a file, not a folder: choose another path\n")
    assert run(capsys, "data", "check", str(birds), FEW, "--figure", str(tmp_path / "new/x.png"))[0] == 0
    assert (tmp_path / "new/x.png").exists()


def test_errors_are_one_line_and_code_2(capsys):
    code, out, err = run(capsys, "data", "check", "nowhere")
    assert (code, out, err) == (2, "", "firstpage: read('nowhere'): no such file or folder\n")
    code, out, err = run(capsys, "data", "get", "nabirds", "birds")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("firstpage: dataset 'nabirds': no such name; the names are glyphs, cub")


def test_version_and_help(capsys):
    assert run(capsys, "--version") == (0, f"firstpage {firstpage.__version__}\n", "")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "Image embeddings for visual search" in out
    assert "--version" in out


def test_names_of_the_package_are_there_and_importing_it_is_light():
    assert firstpage.Embedder.load
    assert firstpage.read is firstpage.data.read
    assert firstpage.fit is firstpage.training.fit
    light = "firstpage.cli, firstpage.data.check, firstpage.data.splits"
    script = f"import sys, {light}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_wrong_usage_is_code_2(capsys):
    assert run(capsys, "data", "get", "cub")[0] == 2
    assert run(capsys, "data", "fly")[0] == 2


def test_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "firstpage", "data", "get", "nabirds", "birds"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("firstpage: dataset 'nabirds'")
    assert done.stderr.count("\n") == 1


def test_mistakes_of_users_are_one_line_and_bugs_keep_their_traceback(capsys, monkeypatch):
    def mistaken(*_):
        raise UserError("name: no such dataset")

    def broken(*_):
        raise ValueError("of a library")

    monkeypatch.setattr("firstpage.data.download.download_dataset", mistaken)
    assert run(capsys, "data", "get", "cub", "birds") == (2, "", "firstpage: name: no such dataset\n")
    with pytest.raises(UserError, match="no such dataset"):
        cli.main(["--debug", "data", "get", "cub", "birds"])
    assert run(capsys, "data", "get", "cub", "birds")[0] == 2  # for the one command only
    monkeypatch.setattr("firstpage.data.download.download_dataset", broken)
    with pytest.raises(ValueError, match="of a library"):
        cli.main(["data", "get", "cub", "birds"])


HOSTILE = "\x1b[31m\x9b2J\u202ered\x7f\r"


def test_control_characters_in_names_do_not_reach_the_terminal(capsys, tmp_path, birds):
    for name in (f"{HOSTILE}one", f"{HOSTILE}two"):
        (birds / name).mkdir()
        (birds / name / f"{HOSTILE}.png").write_bytes((birds / "auk" / "1.png").read_bytes())
        (birds / name / f"{HOSTILE}.jpg").write_bytes(b"broken")
    (birds / "stray.jpg").touch()
    (tmp_path / f"{HOSTILE}.csv").write_text(f"{HOSTILE},label\na,b\n", encoding="utf-8")
    hostile = tmp_path / HOSTILE
    birds.rename(hostile)
    commands = [
        ["data", "check", str(hostile)],
        ["data", "check", str(hostile), "--json"],
        ["data", "check", str(tmp_path / f"{HOSTILE}.csv")],
        ["data", "check", str(hostile / "nowhere")],
        ["data", "get", HOSTILE, str(hostile)],
        ["train", HOSTILE, "--data", str(hostile), "--out", str(hostile / "auk")],
        ["evaluate", str(hostile)],
        ["figures", HOSTILE],
        ["recipe", "--set", HOSTILE],
        [HOSTILE],
        [f"--{HOSTILE}"],
    ]
    for command in commands:
        code, out, err = run(capsys, *command)
        assert code in (1, 2)
        assert len((out + err).splitlines()) < 100
        assert all(line.isprintable() for line in (out + err).split("\n")), command
        if "--json" in command:
            assert f"{HOSTILE}one" in json.loads(out)["histogram"]


def test_names_that_are_not_utf8_are_printed(tmp_path, birds):
    folder = os.fsdecode(os.fsencode(birds) + b"\xff")
    birds.rename(folder)
    done = subprocess.run(
        [sys.executable, "-m", "firstpage", "data", "check", folder, FEW],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "birds\\u" in done.stdout or "birds\\udcff" in done.stdout


def test_messages_are_short_whatever_they_quote(capsys, tmp_path):
    (tmp_path / "birds.csv").write_text(",".join(f"column{number}" for number in range(50_000)) + "\n")
    code, out, err = run(capsys, "data", "check", str(tmp_path / "birds.csv"))
    assert (code, out) == (2, "")
    assert len(err) < 2100


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("losses", losses.names()),
        ("backbones", backbones.names()),
        ("figures", figures.names()),
        ("recipes", recipes.names()),
        ("data", data.kinds()),
    ],
    ids=["losses", "backbones", "figures", "recipes", "data"],
)
def test_list_has_a_sentence_for_every_name(capsys, what, names):
    code, out, err = run(capsys, "list", what)
    assert (code, err) == (0, "")
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert [name for name, _ in lines] == names
    assert all(sentence.endswith(".") and len(sentence) > 15 for _, sentence in lines)
    assert len({sentence for _, sentence in lines}) == len(names)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["train", "--data", "{birds}", "--set", "loss.name=tokp"], "firstpage list losses"),
        (["train", "--data", "{birds}", "--set", "model.backbone=resnet52"], "firstpage list backbones"),
        (["figures", "sphere"], "firstpage list figures"),
        (["list", "loses"], "losses, backbones, figures, recipes, tables, data"),
    ],
    ids=["loss", "backbone", "figure", "list"],
)
def test_errors_name_the_command_that_lists_the_names(capsys, tmp_path, birds, arguments, command):
    arguments = [argument.format(birds=birds) for argument in arguments]
    out = ["--out", str(tmp_path / "run")] if arguments[0] != "list" else []
    code, _, err = run(capsys, *arguments, *out)
    assert (code, err.count("\n")) == (2, 1)
    assert command in err
    assert "names()" not in err


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cub-topk", []),
        ("glyphs", ["loss.name=triplet-hard"]),
        (
            None,
            [
                'model.options={strides = "v1", "odd key" = [1, {a = 2}]}',
                "model.weights=we\\'ird",
                "model.crop=64",
            ],
        ),
        (None, ["loss.name=own.module:Loss", "loss.scale=[1, 2]"]),
    ],
    ids=["named", "triplet", "options", "own-loss"],
)
def test_recipe_explains_every_key_and_reads_back(capsys, name, changes):
    arguments = [argument for change in changes for argument in ("--set", change)]
    code, out, _ = run(capsys, "recipe", *([name] if name else []), *arguments)
    recipe = recipes.find(name).changed(changes)
    assert code == 0
    assert Recipe.of(tomllib.loads(out)) == recipe
    lines = out.splitlines()
    for section in ("model", "batch", "memory", "augment", "optimizer", "schedule", "train"):
        for key in vars(getattr(recipe, section)):
            found = [
                number for number, line in enumerate(lines) if line.removeprefix("# ").startswith(f"{key} = ")
            ]
            assert found, f"{section}.{key}"
            assert any(lines[number - 1].startswith("# ") for number in found), f"{section}.{key}"
    # What is commented out may be used as it stands.
    unset = [line for line in lines if line.startswith(("# weights = ", "# crop = "))]
    if recipe.model.weights is None and name is None:
        assert len(unset) == 2
        assert tomllib.loads("\n".join(line[2:] for line in unset)) == {"weights": "imagenet", "crop": 224}


def test_the_cache_is_shown_and_cleared_except_what_is_in_use(capsys, tmp_path, birds):
    stores = [
        firstpage.data.PixelStore.build(firstpage.read(birds), size=size, progress=False) for size in (8, 9)
    ]
    (tmp_path / "cache" / "embeddings").mkdir()
    kept = tmp_path / "cache" / "embeddings" / "x.bin"
    kept.write_bytes(bytes(5000))
    old = 1_600_000_000
    os.utime(kept, (old, old))
    code, out, _ = run(capsys, "cache")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'cache'}: ")
    assert lines[1].split()[:2] == ["pixels", "2"]
    assert lines[2].split()[:2] == ["features", "0"]
    assert lines[3].startswith("embeddings    1  5 kB  the oldest of ")
    used = stores.pop()
    free = stores.pop().path
    code, out, _ = run(capsys, "cache", "clear", "pixels")
    assert code == 0
    assert "1 in use is still there" in out
    assert not free.exists()
    assert used.path.exists()
    assert kept.exists()
    path = used.path
    del used
    code, out, _ = run(capsys, "cache", "clear")
    assert (code, "in use" in out) == (0, False)
    assert not path.exists()
    assert not kept.exists()
    assert run(capsys, "cache", "clear", "pixel")[0] == 2


def test_a_store_that_is_being_built_is_not_cleared(capsys, tmp_path):
    building = tmp_path / "cache" / "pixels" / "building-x"
    building.mkdir(parents=True)
    with exclusive(building):
        _, out, _ = run(capsys, "cache", "clear")
        assert building.exists()
        assert "1 in use is still there" in out
    run(capsys, "cache", "clear")
    assert not building.exists()


@pytest.fixture
def model(tmp_path):
    return str(Embedder.create(backbone="small", dim=4, stored=48).save(tmp_path / "model"))


def test_embed_writes_what_the_name_says(capsys, tmp_path, birds, model):
    tables = {}
    for suffix in ("npz", "csv", "parquet"):
        code, *_ = run(capsys, "embed", model, str(birds), str(tmp_path / f"m.{suffix}"), "--device", "cpu")
        assert code == 0
    with np.load(tmp_path / "m.npz") as file:
        tables = {name: file[name] for name in file.files}
    assert tables["splits"].tolist() == [""] * 16
    with open(tmp_path / "m.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["path", "label", "split", "0", "1", "2", "3"]
    assert [row[0] for row in rows] == tables["paths"].tolist()
    assert [row[1] for row in rows] == tables["classes"][tables["labels"]].tolist()
    vectors = np.array([row[3:] for row in rows], np.float32)
    assert (vectors == tables["embeddings"]).all()
    table = pyarrow.parquet.read_table(tmp_path / "m.parquet").to_pydict()
    assert np.array_equal(np.array(table["embedding"], np.float32), tables["embeddings"])
    assert table["path"] == tables["paths"].tolist()


def test_embed_keeps_splits(capsys, tmp_path, birds, model):
    table = tmp_path / "birds" / "birds.csv"
    table.write_text("path,label,split\nauk/1.png,auk,train\nwren/1.png,wren,test\nwren/2.png,wren,\n")
    code, *_ = run(capsys, "embed", model, str(table), str(tmp_path / "m.npz"), "--device", "cpu")
    assert code == 0
    with np.load(tmp_path / "m.npz") as file:
        assert file["splits"].tolist() == ["train", "test", ""]


@pytest.mark.parametrize(
    ("command", "target", "message"),
    [
        ("embed", "m.txt", "m.txt: embeddings are written as .npz, .csv, .parquet"),
        ("embed", "m", "m: embeddings are written as .npz, .csv, .parquet"),
        ("embed", "file/m.npz", "is a file, not a folder"),
        ("export", "m.txt", "m.txt: an ONNX file is named .onnx"),
    ],
    ids=["text", "none", "file", "onnx"],
)
def test_a_target_that_cannot_be_is_refused_before_any_work(
    capsys, tmp_path, birds, model, monkeypatch, command, target, message
):
    (tmp_path / "file").touch()
    monkeypatch.setattr(Embedder, "embed", None)
    monkeypatch.setattr("torch.onnx.export", None)
    data = [str(birds)] if command == "embed" else []
    code, _, err = run(capsys, command, model, *data, str(tmp_path / target))
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert not (tmp_path / target).exists()


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="a folder in which not even root can write")
def test_embed_refuses_a_folder_in_which_nothing_can_be_written(capsys, birds, model, monkeypatch):
    monkeypatch.setattr(firstpage.data.PixelStore, "build", None)
    code, _, err = run(capsys, "embed", model, str(birds), "/proc/m.npz")
    assert code == 2
    assert "/proc/m.npz: nothing can be written in /proc: choose another path" in err


def test_embed_takes_images(capsys, tmp_path, birds, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "embed", model, "birds/auk/1.png", "--device", "cpu")
    assert (code, out) == (0, "wrote 1 embeddings of 4 dimensions to embeddings.npz\n")
    several = ["birds/wren/2.png", "birds/auk/1.png"]
    code, out, _ = run(capsys, "embed", model, *several, "m.csv", "--device", "cpu")
    assert code == 0
    with np.load("embeddings.npz") as file:
        assert file["paths"].tolist() == ["1.png"]
        first = file["embeddings"][0]
    rows = [line.split(",") for line in (tmp_path / "m.csv").read_text().splitlines()[1:]]
    assert [row[0] for row in rows] == ["wren/2.png", "auk/1.png"]
    np.testing.assert_allclose(np.array(rows[1][3:], float), first, rtol=1e-4)
    code, _, err = run(capsys, "embed", model, "birds/auk/9.png", "m.npz")
    assert (code, err) == (2, "firstpage: birds/auk/9.png: no such file\n")
    code, _, err = run(capsys, "embed", model, "birds", "birds/auk/1.png", "m.npz")
    assert "firstpage: birds: is not an image: give images only" in err
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    code, _, err = run(capsys, "embed", model, "bad.jpg", "--device", "cpu")
    assert code == 2
    assert "bad.jpg: " in err


def test_a_run_folder_stands_for_its_data(capsys, tmp_path, birds, model, monkeypatch):
    folder, target, catalog = str(tmp_path / "run"), str(tmp_path / "x.npz"), data.read(birds)
    RunFolder(folder).begin(Recipe(), catalog, "cpu")
    given = []
    monkeypatch.setattr(
        training, "fit", lambda _, catalog, *__, **___: given.append(catalog) or Result(*[{}] * 4)
    )
    monkeypatch.setattr(Result, "text", lambda _: "")
    for arguments in (
        ["data", "check", folder, FEW],
        ["embed", model, folder, target],
        ["figures", "nearest-classes", target, "--data", folder, "--out", str(tmp_path / "x.png")],
        ["train", "--data", folder, "--set", "model.backbone=small"],
        ["baseline", "--data", folder],
        ["baseline", "--data", str(birds), "--classes", "top"],
    ):
        assert run(capsys, *arguments)[0] == 0, arguments
    assert [each.paths for each in given] == [catalog.paths] * 3
    assert run(capsys, "train", "--data", folder, "--classes", "top")[2] == (
        f"firstpage: classes='top': {folder} is a run: name its data to read it this way\n"
    )


def test_embed_takes_an_image_of_the_folder_that_a_run_was_trained_on(capsys, tmp_path, birds):
    flat = tmp_path / "flat"
    flat.mkdir()
    for image in birds.glob("*/*.png"):
        image.rename(flat / f"{image.parent.name}_{image.name}")
    folder, out = tmp_path / "run", tmp_path / "x.csv"
    RunFolder(folder).begin(Recipe(), data.read(flat, classes=r"(\w+)_"), "cpu", ["auk", "coot"])
    Embedder.create(backbone="small", dim=4, stored=48).save(folder / "best")
    code, _, errors = run(capsys, "embed", str(folder), str(flat / "auk_1.png"), str(out), "--device", "cpu")
    assert code == 0, errors
    assert len(out.read_text().splitlines()) == 2
