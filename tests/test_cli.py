import json
import subprocess
import sys
import types

import pytest

import firstpage.data
from firstpage import cli


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    output = capsys.readouterr()
    return end.value.code, output.out, output.err


@pytest.fixture
def checked(monkeypatch):
    """Stand-ins for the reader and the check, which the commands only call."""
    seen = {}

    class Report:
        def text(self):
            return "3 images"

        def json(self):
            return json.dumps({"images": 3})

        def figure(self, path):
            seen["figure"] = path

    def read(path):
        if path == "nowhere":
            raise FileNotFoundError("read('nowhere'): no such\nfile or folder")
        seen["path"] = path
        return "catalog"

    def check(catalog):
        assert catalog == "catalog"
        return Report()

    monkeypatch.setattr(firstpage.data, "read", read, raising=False)
    monkeypatch.setitem(sys.modules, "firstpage.data.check", types.SimpleNamespace(check=check))
    return seen


def test_get_prints_what_was_done(capsys, tmp_path):
    code, out, err = run(capsys, "data", "get", "casia", str(tmp_path))
    assert (code, err) == (0, "")
    assert out.startswith("casia: its publisher gives it out at http")


def test_check_as_text_or_json_with_a_figure(capsys, tmp_path, checked):
    assert run(capsys, "data", "check", "birds") == (0, "3 images\n", "")
    assert checked == {"path": "birds"}
    figure = tmp_path / "classes.png"
    assert run(capsys, "data", "check", "birds", "--json", "--figure", str(figure)) == (
        0,
        '{"images": 3}\n',
        "",
    )
    assert checked["figure"] == figure


def test_errors_are_one_line_and_code_2(capsys, checked):
    assert run(capsys, "data", "check", "nowhere") == (
        2,
        "",
        "firstpage: read('nowhere'): no such file or folder\n",
    )
    code, out, err = run(capsys, "data", "get", "nabirds", "birds")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("firstpage: get('nabirds'): no such dataset; use one of glyphs, cub")


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
