"""The table so far on a terminal: means of what is done, and how far each training is."""

import io
import json
import time

from rich.console import Console

from firstpage.compare import Table
from firstpage.compare.cells import cells_of
from firstpage.compare.live import LiveTable, read_last_evaluation
from firstpage.compare.tuning import trial_cells

TABLE = Table.of(
    {
        "title": "T",
        "row": [{"name": "Margin", "paper": {"R@1": 63.6}}, {"name": "RLL", "loss": {"name": "rll"}}],
    }
)


def write(folder, name, *lines):
    (folder / "runs" / name).mkdir(parents=True)
    log = folder / "runs" / name / "log.jsonl"
    log.write_text(
        "".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 9, "P@1": 7'
    )  # cut by a kill
    return log


def test_the_table_shows_means_and_what_is_trained_now(tmp_path):
    cells = cells_of(TABLE, [0, 1], ["paper"])
    values = {"margin-paper-0": 60.0, "margin-paper-1": 62.0}
    done = {name: {"metrics": {"R@1": value, "MAP@R": 20.0}, "error": ""} for name, value in values.items()}
    done["rll-paper-0"] = {"metrics": {}, "error": "collapsed"}
    write(
        tmp_path, "rll-paper-1", {"step": 4, "epoch": 7, "P@1": 51.2, "R@1": 51.2}, {"step": 5, "loss": 0.1}
    )
    live = LiveTable(cells, done, {"rll-paper-1": time.monotonic()}, tmp_path)
    assert live.lines() == [
        ["Margin", "paper", "2/2", "61.0 ± 12.7", "63.6", "20.0 ± 0.0", ""],
        ["RLL", "paper", "1/2", "", "", "", "seed 1: epoch 7/15, R@1 51.2, 0 s; 1 failed"],
    ]
    assert live.caption().startswith("3 of 4 are done")
    drawn = io.StringIO()
    with live.shown(Console(file=drawn, force_terminal=True, width=120)):
        pass
    assert "61.0 ± 12.7" in drawn.getvalue()


def test_trials_show_the_best_so_far(tmp_path):
    cells = trial_cells(TABLE, 3)
    done = {
        f"margin-trial-{number}-fair-1000": {"metrics": {}, "error": "", "selected": value}
        for number, value in enumerate((40.0, 44.0))
    }
    lines = LiveTable(cells, done, {"rll-trial-0-fair-1000": time.monotonic()}, tmp_path).lines()
    assert lines == [["Margin", "fair", "2/3", "44.0", ""], ["RLL", "fair", "0/3", "", "trial 0: 0 s"]]


def test_an_evaluation_that_is_being_written_is_not_read(tmp_path):
    log = write(tmp_path, "margin", {"step": 4, "epoch": 1, "P@1": 50.0})
    assert read_last_evaluation(log)["P@1"] == 50.0
