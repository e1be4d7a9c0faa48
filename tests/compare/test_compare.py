"""Tables of methods: read strictly, trained once, resumed, and written with the papers' figures."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from firstpage import cli
from firstpage.compare import Table, cell_trainer, cells, run_cells
from firstpage.compare.adopting import adopt_cells
from firstpage.compare.rendering import table_lines, to_markdown, write_pages
from firstpage.compare.summary import Measured, compare_best, summarize
from firstpage.errors import UserError
from firstpage.training.stopping import Stopped

TABLE = """
title = "Two methods"
about = "On a few glyphs."
metrics = ["R@1", "MAP@R", "NMI"]

[recipe]
model = { backbone = "small", dim = 8, stored = 32, crop = 32 }
batch = { size = 16, images_per_class = 4 }
schedule = { epochs = 1 }
augment = { crop = "center", flip = 0.0 }
loss = { name = "topk", k = 3 }

[[row]]
name = "Ranked list"
paper = { "R@1" = 57.4 }
differs = "BN-Inception"
loss = { name = "rll" }

[[row]]
name = "Top-k"
schedule = { warmup = 0.5 }
"""


@pytest.fixture(scope="module")
def catalog(first_glyphs):
    return first_glyphs


@pytest.fixture
def table(tmp_path):
    (tmp_path / "two.toml").write_text(TABLE)
    return Table.read(tmp_path / "two.toml")


def test_rows_change_what_all_share(table):
    ranked, topk = (row.recipe for row in table.rows)
    assert ranked.loss == {"name": "rll"}  # not the other loss's k
    assert topk.loss == {"name": "topk", "k": 3}
    assert (topk.schedule.epochs, topk.schedule.warmup, ranked.schedule.warmup) == (1, 0.5, 0.0)
    assert [row.key for row in table.rows] == ["ranked-list", "top-k"]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('name = "rll"', "margn = 1", "row 'Ranked list': "),
        ('title = "Two methods"', "titel = 1", "titel: no such key"),
        ('"R@1" = 57.4', '"R@1" = "good"', "paper.R@1='good': must be a number"),
        ('name = "Top-k"', 'name = "Ranked: list"', "names must be different"),
        ("[[row]]", "[[rows]]", "no such key"),
    ],
    ids=["setting", "key", "figure", "names", "rows"],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path, old, new, complaint):
    path = tmp_path / "wrong.toml"
    path.write_text(TABLE.replace(old, new))
    if complaint == "row 'Ranked list': ":
        path.write_text(TABLE.replace('loss = { name = "rll" }', "optimizer = { margn = 1 }"))
    with pytest.raises(UserError, match=r"wrong\.toml: .*" + complaint.replace("(", r"\(")):
        Table.read(path)


def test_a_table_is_trained_once_and_written_beside_the_papers_figures(table, catalog, tmp_path, monkeypatch):
    out, options = tmp_path / "out", {"cache": tmp_path / "cache", "progress": False, "device": "cpu"}
    lines = []
    assert run_cells(table, catalog, out, seeds=[0, 1], show=lines.append, **options)
    assert lines[0] == "4 trainings, 0 of them done"
    assert len(lines) == 5
    assert sorted(path.name for path in (out / "cells").iterdir()) == [
        *("ranked-list-paper-0.json", "ranked-list-paper-1.json", "top-k-paper-0.json", "top-k-paper-1.json")
    ]
    assert not [path for path in (out / "runs").iterdir() if path.is_dir()]  # the models are not kept

    def refuse(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(cell_trainer, "fit", refuse)
    assert run_cells(table, catalog, out, seeds=[0, 1], show=lines.append, **options)
    assert lines[-1] == "4 trainings, 4 of them done"
    measured = summarize(table, catalog, out, [0, 1], ["paper"])
    each = [json.loads((out / "cells" / f"top-k-paper-{seed}.json").read_text()) for seed in (0, 1)]
    values = [cell["metrics"]["R@1"] for cell in each]
    assert measured[1].mean("R@1")[0] == pytest.approx(np.mean(values))
    assert measured[1].mean("R@1")[1] == pytest.approx(12.706 * np.std(values, ddof=1) / 2**0.5, rel=1e-3)
    assert all(0 < cell["metrics"]["NMI"] < 100 and 0 < cell["metrics"]["F1"] < 100 for cell in each)
    text = to_markdown(table, measured)
    assert "| Ranked list | paper | 2 |" in text
    assert "| 57.4 |" in text
    assert "in the paper BN-Inception" in text
    assert compare_best(measured, "R@1") in text
    assert [path.name for path in write_pages(out, table, measured)] == ["table.md", "table.html"]
    # Another recipe is another cell.
    assert cells.read_cell(cells.cells_of(table, [2], ["paper"])[0], catalog, out) is None
    other = Table.of({"title": "x", "row": [{"name": "Top-k", "schedule": {"epochs": 2}}]})
    assert cells.read_cell(cells.cells_of(other, [0], ["paper"])[0], catalog, out) is None
    # A cell of a version that had a setting less is the same training, one with a setting more is not.
    first = cells.cells_of(table, [0], ["paper"])[1]
    for text, same in ((each[0]["recipe"].replace("stages = 1\n", ""), True), ("[model]\nlayers = 1", False)):
        assert text != each[0]["recipe"]
        known = each[0] | {"recipe": text, "identity": cells._digest(text, catalog)}
        (out / "cells" / f"{first.name}.json").write_text(json.dumps(known))
        assert (cells.read_cell(first, catalog, out) == known) == same
    (out / "cells" / f"{first.name}.json").write_text(json.dumps(each[0]))
    # A table beside it takes over what it has in common with it, if that has measured all that it shows.
    odd = ["{", "[1]", '{"identity": ["x"]}', "[" * 100_000, json.dumps(each[0] | {"metrics": [1]})]
    odd += [
        json.dumps(each[0] | change) for change in ({"error": None}, {"metrics": {}}, {"variant": "tuned"})
    ]
    for number, text in enumerate(odd):
        (out / "cells" / f"a-{number}.json").write_text(text)
    renamed, beside = replace(table, rows=(replace(table.rows[1], name="Page"),)), tmp_path / "beside"
    assert run_cells(renamed, catalog, beside, seeds=[0, 1], show=lines.append, **options)
    assert lines[-2:] == [
        "2 trainings were found beside it, by the same recipe on the same data",
        "2 trainings, 2 of them done",
    ]
    assert [json.loads((beside / "cells" / f"page-paper-{seed}.json").read_text()) for seed in (0, 1)] == [
        cell | {"row": "Page"} for cell in each
    ]
    wanted = cells.cells_of(renamed, [0], ["paper"])
    assert adopt_cells(wanted, catalog, tmp_path / "third", {"NMI", "P@1000000"}) == 0
    tuned = [replace(cell, row=replace(cell.row, variant="tuned")) for cell in wanted]
    assert adopt_cells(tuned, catalog, tmp_path / "third", {"NMI"}) == 0
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "third").symlink_to(tmp_path / "elsewhere")  # what is beside it is beside the link
    again = [wanted[0], replace(wanted[0], row=replace(wanted[0].row, name="The same"))]
    assert adopt_cells(again, catalog, tmp_path / "third", {"NMI"}) == 2


def test_a_table_is_worked_off_in_pieces_and_a_failure_is_a_cell(table, catalog, tmp_path, monkeypatch):
    out, options = tmp_path / "out", {"cache": tmp_path / "cache", "progress": False, "device": "cpu"}
    assert not run_cells(table, catalog, out, minutes=0.0, show=str, **options)
    assert not (out / "cells").exists()

    def stop(*_, **__):
        cell_trainer.time.sleep(0.05)
        raise Stopped("stopped after step 3", 15)

    monkeypatch.setattr(cell_trainer, "fit", stop)
    lines = []
    with pytest.raises(Stopped):  # not by the clock, but by a person
        run_cells(table, catalog, out, minutes=5.0, show=lines.append, **options)
    assert not run_cells(table, catalog, out, minutes=0.0005, show=lines.append, **options)
    assert lines[-1] == "the time is over at Ranked list, seed 0: run it again to go on"

    def fail(recipe, *_, **__):
        raise UserError("stopped: the run has collapsed 3 times")

    monkeypatch.setattr(cell_trainer, "fit", fail)
    assert run_cells(table, catalog, out, show=lines.append, **options)
    measured = summarize(table, catalog, out, [0], ["paper"])
    assert "| Top-k | paper | 0 | – |" in to_markdown(table, measured)
    assert "Top-k, paper: stopped: the run has collapsed 3 times" in to_markdown(table, measured)
    assert run_cells(table, catalog, out, show=lines.append, **options)
    assert "2 trainings, 0 of them done" in lines[-3]  # tried again
    (out / "cells" / "top-k-paper-0.json").write_text("{}")
    with pytest.raises(UserError, match="damaged: remove it"):
        run_cells(table, catalog, out, show=str, **options)


def test_a_method_that_training_made_worse_is_named():
    rows = [{"name": "Untrained", "schedule": {"epochs": 0}}, {"name": "A"}, {"name": "B"}, {"name": "C"}]
    table = Table.of({"title": "T", "metrics": ["R@1"], "row": rows})
    found = [{0: {"metrics": {"R@1": value}, "error": ""}} for value in (50.0, 40.0, 60.0)]
    found[1][0]["warnings"] = ["step 9: collapsed"]
    measured = [Measured(row, "paper", each) for row, each in zip(table.rows, [*found, {}], strict=True)]
    assert table_lines(table, measured)[2] == [
        "A, paper: worse than without training (R@1 40.0, 50.0): step 9: collapsed"
    ]
    assert table_lines(table, measured[1:])[2] == []  # nothing to compare with


def test_a_cell_that_the_clock_cuts_resumes_from_its_checkpoint(table, catalog, tmp_path, monkeypatch):
    """The clock raises SIGTERM within a training, which then writes a checkpoint."""
    out, options = tmp_path / "out", {"cache": tmp_path / "cache", "progress": False, "device": "cpu"}
    one = Table(table.title, table.rows[:1], table.metrics)
    real, steps = cell_trainer.fit, []

    def fit_and_ring(*arguments, **settings):
        from firstpage.training.job import TrainJob

        update = TrainJob.update

        def ring(job, loss, *, logged):
            steps.append(job.state.step)
            if len(steps) == 2:
                cell_trainer.signal.raise_signal(cell_trainer.signal.SIGALRM)
            return update(job, loss, logged=logged)

        monkeypatch.setattr(TrainJob, "update", ring)
        try:
            return real(*arguments, **settings)
        finally:
            monkeypatch.setattr(TrainJob, "update", update)

    monkeypatch.setattr(cell_trainer, "fit", fit_and_ring)
    with pytest.raises(Stopped):
        run_cells(one, catalog, out, minutes=60.0, show=str, **options)
    assert steps == [0, 1]
    steps.clear()
    steps += [-1, -1]  # it does not ring again
    assert run_cells(one, catalog, out, minutes=math.inf, show=str, **options)
    assert steps[2] == 2  # after the second step


def test_on_the_command_line(catalog, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.toml").write_text(TABLE)
    monkeypatch.setattr("firstpage.runs.run_data.read_data", lambda *_: catalog)
    options = ["--data", "glyphs", "--cache", str(tmp_path / "cache"), "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", "two.toml", *options, "--max-minutes", "0"])
    assert ended.value.code == 3
    assert "not complete: run it again to go on" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", "two.toml", *options, "--set", "schedule.epochs=0"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "2/2  Top-k, seed 0, paper: R@1" in shown
    assert "wrote results/two/table.md and results/two/table.html" in shown

    def run(*changes):
        with pytest.raises(SystemExit):
            cli.main(["compare", "two.toml", *options, *changes])
        return "".join(capsys.readouterr())

    # One row of another seed: the pages keep the seeds that are there.
    shown = run("--set", "schedule.epochs=0", "--row", "Top-k", "--seeds", "1-1")
    assert "1 trainings, 0 of them done" in shown
    assert "| Top-k | paper | 2 |" in shown
    assert "| Ranked list | paper | 1 |" in shown
    # Other settings do not overwrite what was measured, and it comes back with them.
    before = (tmp_path / "results/two/cells/top-k-paper-0.json").read_bytes()
    shown = run("--set", "model.dim=4", "--set", "schedule.epochs=0", "--row", "Top-k")
    assert "1 were trained with other settings or data: they are kept in results/two/cells/replaced" in shown
    assert [path.read_bytes() for path in (tmp_path / "results/two/cells/replaced").iterdir()] == [before]
    shown = run("--set", "schedule.epochs=0", "--row", "Top-k")
    assert "1 trainings were found beside it" in shown
    assert json.loads((tmp_path / "results/two/cells/top-k-paper-0.json").read_bytes()) == json.loads(before)
    assert "'Topk': no such row; did you mean 'Top-k'?" in run("--row", "Topk")
