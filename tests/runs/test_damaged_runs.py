"""Run folders from strangers: each file is read as it was written, or refused in one line that names it."""

import json
import random

import numpy as np
import pytest

from firstpage.data import Catalog
from firstpage.errors import UserError
from firstpage.models import Embedder
from firstpage.recipes import Recipe
from firstpage.report.facts import run_facts
from firstpage.runs import Record
from firstpage.runs.folder import RunFolder
from firstpage.runs.run_data import find_data
from firstpage.training.result import Result

ABOUT = {
    "firstpage": "0.1",
    "git": None,
    "python": "3.12",
    "torch": "2.6",
    "device": "CPU",
    "data": {"name": "csv", "root": "nowhere", "images": 9, "fingerprint": "ab", "train_classes": ["auk"]},
    "result": {
        "protocol": "paper",
        "best": {"P@1": 3.0},
        "test": {"P@1": 3.0},
        "epoch": 1,
        "seconds": 3.2,
        "images_per_second": 4.4,
        "warnings": ["collapsed"],
    },
}
LOG = [
    {"step": 0, "epoch": 0, "P@1": 1.0},
    {"step": 1, "lr": 0.1, "loss": float("nan"), "histogram": [1, 2]},
    {"step": 1, "warning": "collapsed"},
    {"step": 2, "epoch": 1, "P@1": 4.0},
]
SPOILED = [None, [], {}, [{}], "", "x" * 10_000, True, -1, 31.5, 10**12, 10**400, float("nan"), {"P@1": "x"}]
BYTES = [b"", b"\0" * 9, b"[" * 9000, b"9" * 5000, b"NaN", b"1e999", b'"', b"}", b"\n", b"\xff"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda folder: None)  # the model is not what is damaged here
    (tmp_path / "recipe.toml").write_text(Recipe().toml())
    (tmp_path / "run.json").write_text(json.dumps(ABOUT))
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LOG))
    return tmp_path


def spoil(table, draw):
    """Replace, rename or remove a value somewhere in a table."""
    inner = [value for value in table.values() if isinstance(value, dict)]
    if inner and draw.random() < 0.6:
        return spoil(draw.choice(inner), draw)
    key = draw.choice(list(table))
    if draw.random() < 0.3:
        value = table.pop(key)
        table |= {key[:-1]: value} if draw.random() < 0.5 else {}
    else:
        table[key] = draw.choice(SPOILED)
    return None


def use(folder):
    """Read a run folder for everything that is made of it; return the messages of what is refused."""
    refused = []

    def attempt(action):
        try:
            return action()
        except (UserError, OSError) as error:
            refused.append(str(error))

    record = attempt(lambda: Record.read(folder))
    if record is not None:
        attempt(lambda: record.final_metric("P@1"))
        attempt(lambda: record.metric_curve("P@1"))
        attempt(record.logged_series)
        attempt(record.recipe.toml)
        attempt(lambda: run_facts(record))
        attempt(lambda: find_data(record))
        attempt(
            lambda: RunFolder(folder).is_finished(
                Recipe(), Catalog("x", folder, [], np.zeros(0, int), [], {})
            )
        )
        if record.result:
            attempt(lambda: Result.read(folder).text())
    return refused


@pytest.mark.parametrize("name", ["run.json", "log.jsonl", "recipe.toml"])
def test_seeded_mutations(run, name):
    written = (run / name).read_bytes()
    for seed in range(35):
        draw = random.Random(seed)
        if name == "recipe.toml" or draw.random() < 0.3:
            at = draw.randrange(len(written))
            data = written[:at] + draw.choice(BYTES) + written[at + draw.randrange(9) :]
        else:
            tables = [
                json.loads(line) for line in (written.splitlines() if name == "log.jsonl" else [written])
            ]
            spoil(draw.choice(tables), draw)
            data = b"".join(json.dumps(table).encode() + b"\n" for table in tables)
        (run / name).write_bytes(data)
        for message in use(run):
            assert message.isprintable(), (seed, message)
            assert len(message) < 800, (seed, message)


@pytest.mark.parametrize(
    ("name", "data", "complaint"),
    [
        ("recipe.toml", b"", "is empty: give it at least one setting"),
        ("recipe.toml", b"# all defaults\n", "is empty: give it at least one setting"),
        ("recipe.toml", b"x = " + b"[" * 5000, "is nested deeper than 32 levels"),
        ("recipe.toml", b"[loss]\nx" + b".x" * 99 + b" = 1", "is nested deeper than 32 levels"),
        ("recipe.toml", b"[optimizer]\nlr = 1" + b"0" * 400, "does not fit into 64 bits"),
        ("recipe.toml", b"#" * 2**17, "more than 65,536"),
        ("recipe.toml", b"\xff", "is not valid TOML"),
        ("run.json", b"", "is empty: restore it from a copy"),
        ("run.json", b"[]", "run=[]: must be a table"),
        ("run.json", b"[" * 100_000, "is nested deeper than 32 levels"),
        ("run.json", b'{"data": 3}', "run.data=3: must be a table: restore it from a copy"),
        ("run.json", b'{"data": {"train_classes": [3]}}', "run.data.train_classes=3: must be a string"),
        ("run.json", b'{"result": {"best": {"P@1": "x"}}}', "run.result.best.P@1='x': must be a number"),
        ("run.json", b'{"torch": "2", "torch": "3"}', "key 'torch' is given twice"),
        ("log.jsonl", b'{"step": 0}\nhalf\n{"step": 1}\n', "line 2: is not valid JSON"),
        ("log.jsonl", b'{"step": 0}\n{"loss": 1}\n', "line 2: has no step"),
        ("log.jsonl", b'{"step": 0, "P@1": "x"}\n', "line 1: line.P@1='x': must be a number"),
        ("log.jsonl", b'{"step": 1.5}\n', "line 1: step=1.5: must be a whole number"),
        ("log.jsonl", b" " * 2**21, "line 1: is longer than 1,048,576 bytes"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(run, name, data, complaint):
    (run / name).write_bytes(data)
    with pytest.raises(UserError) as caught:
        Record.read(run)
    assert str(caught.value).startswith(f"{run / name}: ")
    assert complaint in str(caught.value)


def test_a_result_that_lacks_a_value_says_which(run):
    result = {key: value for key, value in ABOUT["result"].items() if key != "epoch"}
    (run / "run.json").write_text(json.dumps(ABOUT | {"result": result}))
    with pytest.raises(UserError, match=r"run\.json: result\.epoch is missing"):
        Result.read(run)


@pytest.mark.parametrize("tail", [b'{"step": 3, "lo', b"\0\0\0\0", b'{"step": 3}'])
def test_a_line_cut_by_a_kill_is_no_damage(run, tail):
    with (run / "log.jsonl").open("ab") as file:
        file.write(tail)
    assert [line["step"] for line in Record.read(run).log] == [0, 1, 1, 2] + [3] * tail.endswith(b"}")
