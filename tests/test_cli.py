"""The command line, as a person meets it."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import firstpage
from firstpage import cli


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    output = capsys.readouterr()
    return end.value.code, output.out, output.err


@pytest.fixture
def birds(tmp_path):
    """Two classes of two images."""
    random = np.random.default_rng(0)
    for name in ("auk/1.png", "auk/2.png", "wren/1.png", "wren/2.png"):
        path = tmp_path / "birds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 40, 3), np.uint8)).save(path)
    return tmp_path / "birds"


def test_get_prints_what_was_done(capsys, tmp_path):
    code, out, err = run(capsys, "data", "get", "casia", str(tmp_path))
    assert (code, err) == (0, "")
    assert out.startswith("casia: its publisher gives it out at http")


def test_check_as_text_or_json_with_a_figure(capsys, tmp_path, birds):
    code, out, _ = run(capsys, "data", "check", str(birds))
    assert code == 0
    assert "4 images, 2 classes" in out
    figure = tmp_path / "classes.png"
    code, out, _ = run(capsys, "data", "check", str(birds), "--json", "--figure", str(figure))
    assert code == 0
    assert json.loads(out)["images"] == 4
    assert Image.open(figure).size[0] > 100


def test_check_that_finds_a_fault_is_code_1(capsys, birds):
    (birds / "auk" / "3.png").write_bytes(b"not an image")
    code, out, _ = run(capsys, "data", "check", str(birds))
    assert code == 1
    assert "auk/3.png" in out


def test_errors_are_one_line_and_code_2(capsys):
    code, out, err = run(capsys, "data", "check", "nowhere")
    assert (code, out, err) == (2, "", "firstpage: read('nowhere'): no such file or folder\n")
    code, out, err = run(capsys, "data", "get", "nabirds", "birds")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("firstpage: get('nabirds'): no such dataset; use one of glyphs, cub")


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
    script = "import sys, firstpage, firstpage.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_wrong_usage_is_code_2(capsys):
    assert run(capsys, "data", "get", "cub")[0] == 2
    assert run(capsys, "data", "fly")[0] == 2


def test_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "firstpage", "data", "get", "nabirds", "birds"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("firstpage: get('nabirds')")
    assert done.stderr.count("\n") == 1
