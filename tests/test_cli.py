"""The command line, as a person meets it."""

import errno
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

import firstpage
from firstpage import cli
from firstpage.errors import UserError
from firstpage.models import Embedder


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
    code, _, err = run(capsys, "train", "--data", str(birds), "--out", str(file), "--set", "batch.size=8")
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
