"""The scripts in examples/ run without arguments and print what they promise."""

import re
from pathlib import Path

import pytest

from support.children import start_python

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run an example in an empty folder, with a cache that all of them share."""
    cache, folder = (tmp_path_factory.mktemp(name) for name in ("cache", "empty"))
    environment = {"FIRSTPAGE_CACHE": str(cache), "CUDA_VISIBLE_DEVICES": ""}

    def run_example(name, *arguments):
        errors = cache / f"{name}.txt"
        script = ROOT / "examples" / name
        process, output = start_python(script, *arguments, errors=errors, folder=folder, **environment)
        with output:
            printed = output.read()
        process.join()
        assert process.exitcode == 0, errors.read_text()
        assert not any(folder.iterdir())
        return printed

    return run_example


def test_own_loop_improves_the_retrieval_of_unseen_classes(run):
    printed = run("own_loop.py", "--epochs", "1")
    found = re.fullmatch(
        r"untrained +P@1 +([\d.]+) +R@8 +([\d.]+)\ntrained +P@1 +([\d.]+) +R@8 +([\d.]+)\n", printed
    )
    assert found, printed
    before, after = float(found[2]), float(found[4])
    assert after > before


def test_train_and_search_learns_and_prints_the_nearest_of_the_query(run):
    printed = run("train_and_search.py").splitlines()
    before, after = re.fullmatch(r"P@1 ([\d.]+) before training, ([\d.]+) after", printed[0]).groups()
    assert float(after) > 2 * float(before)
    query = re.fullmatch(r"nearest to (.+):", printed[1])[1]
    neighbors = [re.fullmatch(r"  (-?[\d.]+)  (.+?)  +(\S+)", line).groups() for line in printed[2:]]
    scores = [float(score) for score, _, _ in neighbors]
    assert len(neighbors) == 5
    assert scores == sorted(scores, reverse=True)
    assert not any(query.endswith(path) for _, _, path in neighbors)


def test_own_parts_improve_the_retrieval_of_unseen_classes(run):
    lines = run("own_parts.py").splitlines()
    column = lines[0].split().index("R@8")
    rows = dict(re.findall(r"^(test, \w+) +(.*)", "\n".join(lines), re.MULTILINE))
    untrained, trained = (float(rows[f"test, {name}"].split()[column]) for name in ("untrained", "trained"))
    assert trained > 2 * untrained
