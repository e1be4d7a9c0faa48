"""The commands evaluate, report and figures."""

import json
import shutil

import numpy as np
import pytest

from firstpage import cli
from firstpage.data import read
from firstpage.models import Embedder
from firstpage.training import fit
from support.striped import small_recipe


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return end.value.code, output.out, output.err


def test_evaluate_prints_metrics_intervals_classes_and_confusions(capsys, runs):
    before = sorted(path for path in (runs / "one").rglob("*"))
    code, out, _ = run(capsys, "evaluate", runs / "one", "--cache", runs / "cache")
    assert code == 0
    assert out.startswith("one on stripes: 36 queries among one another, 6 classes, paper protocol\n")
    for word in ("P@1 ", "MAP@R ", "mAP ", "AUC ", "95 % over queries", "clusters  NMI", "worst classes"):
        assert word in out
    assert "omitted: 1 query has no other image of the same class to find" in out
    assert sorted(path for path in (runs / "one").rglob("*")) == before  # it writes nothing


def test_evaluate_as_json_says_the_same(capsys, runs, tmp_path):
    arguments = ("evaluate", runs / "one", "--cache", runs / "cache", "--json")
    code, out, _ = run(capsys, *arguments)
    found = json.loads(out)
    reported = json.loads((runs / "one" / "run.json").read_text())["result"]["test"]
    assert code == 0
    assert all(value["value"] == reported[name] for name, value in found["retrieval"].items())
    for estimate in found["retrieval"].values():
        for low, high in (estimate["queries"], estimate["classes"]):
            assert low <= estimate["value"] <= high
    assert len(found["classes"]) == 6
    assert sum(row["queries"] for row in found["classes"]) == found["queries"] == 36
    mean = sum(row["queries"] * row["P@1"] for row in found["classes"]) / 36
    assert mean == pytest.approx(reported["P@1"])
    wrong = sum(pair["count"] for pair in found["confusions"])
    assert wrong <= round(36 * (1 - reported["P@1"] / 100))
    assert {pair["query"] for pair in found["confusions"]} <= {row["class"] for row in found["classes"]}
    code, printed, _ = run(capsys, *arguments, "--out", tmp_path / "new folder" / "metrics.json")
    assert (code, printed) == (0, "")
    assert json.loads((tmp_path / "new folder" / "metrics.json").read_text()) == found


def test_evaluate_names_every_class_when_asked(capsys, runs, stripes):
    _, out, _ = run(
        capsys,
        "evaluate",
        runs / "two" / "best",
        "--data",
        stripes,
        "--cache",
        runs / "cache",
        "--every-class",
        "--no-clustering",
    )
    table = out[out.index("classes, the worst first") : out.index("most confused")]
    assert len(table.strip().splitlines()) == 1 + 6
    assert "clusters" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "nowhere"], "nowhere: no such folder"),
        (["evaluate", "{runs}/one", "--data", "nowhere"], "read('nowhere'): no such file or folder"),
        (
            ["evaluate", "{runs}/one", "--protocol", "fare"],
            "train.protocol='fare': choose one of paper, fair",
        ),
        (["evaluate", "{runs}/one", "--device", "gpu"], "device='gpu': no such device"),
        (["evaluate", "{runs}/one", "--device", "mps"], "device='mps': firstpage runs on cuda and cpu"),
        (["evaluate", "{runs}/one/best"], "pass the dataset with --data"),
        (["report", "{runs}/one", "nowhere"], "nowhere: no such folder"),
        (["report", "{runs}/one", "{runs}/one"], "the same folder twice"),
        (["report", "{runs}/one", "--out", "{runs}"], "is a folder: name a file in it"),
        (["evaluate", "{runs}/one", "--out", "{runs}/one/run.json/x"], "is a file, not a folder"),
        (["embed", "{runs}/one", "glyphs", "{runs}"], "is a folder: name a file in it"),
        (["evaluate"], "Missing argument 'subject'; see "),
        (["evaluate", "{runs}/one", "--jsn"], "No such option: --jsn"),
        (["figures", "sphere"], "no such name"),
        (["figures", "training", "nowhere"], "nowhere: not a run folder"),
    ],
)
def test_bad_input_is_one_line_and_code_2(capsys, runs, arguments, message):
    code, out, err = run(capsys, *(argument.format(runs=runs) for argument in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_report_is_written_into_the_first_run(capsys, runs):
    code, out, _ = run(capsys, "report", runs / "two", "--cache", runs / "cache", "--no-clustering")
    assert (code, out) == (0, f"wrote {runs / 'two' / 'report.html'}\n")
    assert (runs / "two" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_figures_are_drawn_by_name(capsys, runs, tmp_path):
    code, out, _ = run(
        capsys, "figures", "training", runs / "one", "--out", tmp_path / "training.svg", "--dark"
    )
    assert (code, out) == (0, f"wrote {tmp_path / 'training.svg'}\n")
    assert (tmp_path / "training.svg").read_text().count("<path") > 3


@pytest.fixture(scope="module")
def plain(stripes, tmp_path_factory):
    """The folder of a run on data without splits, and the same data with a cache of its pixels."""
    folder, data = tmp_path_factory.mktemp("plain"), stripes / "train"
    fit(
        small_recipe("schedule.epochs=1", "train.protocol=fair", "train.folds=3", "batch.size=12"),
        read(data),
        folder / "run",
        cache=folder / "cache",
        progress=False,
    )
    return folder, data


@pytest.mark.usefixtures("_undrawn")
def test_baseline_is_tested_on_the_classes_of_the_run(capsys, plain):
    folder, data = plain
    small = [f"--set={change}" for change in ("model.stored=36", "model.crop=32")]
    arguments = [
        "--data",
        data,
        "--backbone",
        "small",
        "--out",
        folder / "baseline",
        "--cache",
        folder / "cache",
    ]
    code, out, err = run(capsys, "baseline", *arguments, *small)  # a batch of 128 would not fit the data
    assert code == 0, err
    assert "test, untrained" in out
    assert "trained with" not in out
    tests = []
    for name in ("run", "baseline"):
        code, out, _ = run(capsys, "evaluate", folder / name, "--cache", folder / "cache", "--json")
        assert code == 0
        tests.append(json.loads(out))
    assert {row["class"] for row in tests[0]["classes"]} == {row["class"] for row in tests[1]["classes"]}
    assert tests[0]["untrained"]
    assert not tests[1]["untrained"]
    arguments = ["--cache", folder / "cache", "--no-clustering", "--out", folder / "both.html"]
    code, *_ = run(capsys, "report", folder / "run", folder / "baseline", *arguments)
    assert code == 0
    page = (folder / "both.html").read_text(encoding="utf-8")
    assert "not comparable" not in page
    assert page.count(", untrained</bdi>") == 0  # one column of it, that of the run
    code, *_ = run(capsys, "report", folder / "baseline", *arguments)
    assert "Not trained, as a baseline: small" in (folder / "both.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("_undrawn")
def test_a_saved_model_is_compared_on_the_test_of_the_run(capsys, plain):
    folder, data = plain
    cache = ["--cache", folder / "cache", "--no-clustering"]
    model = shutil.copytree(folder / "run" / "best", folder / "model", dirs_exist_ok=True)
    for order in ((folder / "run", model), (model, folder / "run")):
        code, _, err = run(capsys, "report", *order, "--out", folder / "model.html", *cache)
        assert code == 0, err
        assert "not comparable" not in (folder / "model.html").read_text(encoding="utf-8")
    outputs = []
    for arguments in ([folder / "run"], [model, "--data", folder / "run"], [model, "--data", data]):
        code, out, err = run(capsys, "evaluate", *arguments, "--json", *cache)
        assert code == 0, err
        outputs.append(json.loads(out))
    assert outputs[0]["retrieval"] == outputs[1]["retrieval"]
    assert outputs[0]["classes"] == outputs[1]["classes"]
    assert len(outputs[2]["classes"]) == 12  # of unknown training: all of the data is its test


def test_each_image_is_embedded_once(capsys, plain, tmp_path, monkeypatch):
    """Evaluations, reports, figures and files of embeddings share what was embedded before."""
    folder, data = plain
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    counts, embed = [], Embedder.embed
    monkeypatch.setattr(
        Embedder, "embed", lambda *given, **more: counts.append(len(more["rows"])) or embed(*given, **more)
    )
    out = tmp_path / "m.npz"
    for arguments in (
        ["evaluate", folder / "run", "--no-clustering", "--json"],
        ["figures", "roc", folder / "run", "--out", tmp_path / "roc.svg"],
        ["embed", folder / "run", data, out],
        ["figures", "class-similarity", folder / "run", "--out", tmp_path / "class.svg"],
    ):
        code, _, err = run(capsys, *arguments)
        assert code == 0, err
    assert len(counts) == 2
    assert sum(counts) == 12 * 6
    with np.load(out) as file:  # as the run was trained
        assert {*file["splits"].tolist()} == {"train", "val", "test"}
        assert (file["splits"] == "test").sum() == counts[0]
