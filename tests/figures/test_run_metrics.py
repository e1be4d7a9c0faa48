"""Figures of run folders: training curves, counts of triplets, and group sizes."""

import json
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from firstpage import figures
from firstpage.data.sampler import GroupSampler
from firstpage.figures.style import plot_curves
from firstpage.recipes import Recipe
from firstpage.runs import Record


def recipe(loss="topk", size=64, images=4, **settings):
    return Recipe.of(
        {"loss": {"name": loss, **settings}, "batch": {"size": size, "images_per_class": images}}
    )


def folder(path, lines, result=None, chosen=None):
    path.mkdir()
    (path / "recipe.toml").write_text((chosen or recipe()).toml())
    (path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (path / "run.json").write_text(json.dumps({} if result is None else {"result": {"test": result}}))
    return path


LINES = [
    {"step": 0, "epoch": 0, "P@1": 10.0, "R@1": 10.0},
    {"step": 20, "epoch": 1, "loss": 0.3, "lr": 0.1},
    {"step": 30, "epoch": 1, "P@1": 30.0, "R@1": 30.0},
    {"step": 60, "epoch": 2, "P@1": 25.0, "R@1": 25.0},
]


def test_a_run_is_its_evaluations(tmp_path):
    run = Record.read(folder(tmp_path / "one", LINES))
    assert run.metric_curve("P@1") == ([0, 30, 60], [10.0, 30.0, 25.0])
    assert run.final_metric("R@1") == 30.0  # the best, while nothing else is reported
    assert (run.name, run.recipe) == ("one", recipe())


def test_the_reported_test_comes_before_the_best_evaluation(tmp_path):
    assert Record.read(folder(tmp_path / "one", LINES, {"R@1": 28.0})).final_metric("R@1") == 28.0


def test_a_cut_line_is_left_out_and_a_repeated_step_counts_once(tmp_path):
    path = folder(tmp_path / "one", [*LINES, {"step": 30, "epoch": 1, "P@1": 31.0}])
    with (path / "log.jsonl").open("a") as file:
        file.write('{"step": 90, "P@')
    assert Record.read(path).metric_curve("P@1") == ([0, 30, 60], [10.0, 31.0, 25.0])


def test_a_folder_without_evaluation_says_so(tmp_path):
    early = Record.read(folder(tmp_path / "one", LINES[1:2]))
    for ask in (early.metric_curve, early.final_metric):
        with pytest.raises(ValueError, match="run 'one' has no P@1: it has no evaluation yet: wait"):
            ask("P@1")
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        Record.read(tmp_path)
    with pytest.raises(ValueError, match="has no MAP@R: it has P@1, R@1"):
        Record.read(folder(tmp_path / "two", LINES)).metric_curve("MAP@R")


def naive_triplets(labels, positives, negatives):
    """Counted one by one: `positives` and `negatives` are how many of them a query takes, None for all."""
    count = 0
    for query, own in enumerate(labels):
        same = [i for i, label in enumerate(labels) if label == own and i != query]
        other = [i for i, label in enumerate(labels) if label != own]
        for _ in same[:positives]:
            count += len(other[:negatives])
    return count


@pytest.mark.parametrize(("size", "images"), [(64, 4), (64, 11), (30, 2)])
@pytest.mark.parametrize(
    ("loss", "positives", "negatives"),
    [
        ("triplet-uniform", None, 1),
        ("triplet-semihard", None, 1),
        ("triplet-distance", None, 1),
        ("margin", None, 1),
        ("triplet-hard", 1, 1),
        ("ephn", 1, 1),
        ("epshn", 1, 1),
        ("ep", 1, None),
        ("hp", 1, None),
        ("batch-all", None, None),
        ("topk", 5, 1),
    ],
)
def test_triplets_per_step(loss, positives, negatives, size, images):
    labels = [place // images for place in range(size)]
    expected = naive_triplets(labels, positives, negatives)
    assert figures.triplets_per_step(recipe(loss, size, images)) == expected


def test_triplets_are_those_of_the_batches_the_sampler_makes():
    classes = [row // 20 for row in range(200)]
    batch = next(iter(GroupSampler(classes, 64, 11)))
    labels = [classes[row] for row in batch]
    assert figures.triplets_per_step(recipe("margin", 64, 11)) == naive_triplets(labels, None, 1)


def test_triplets_do_not_ask_for_tables_that_only_training_knows():
    assert figures.triplets_per_step(recipe("margin", 64, 4, classes=True)) == 192


@pytest.mark.parametrize("loss", ["rll", "proxy-nca", "histogram", "soft-triple", "multi-similarity"])
def test_losses_without_triplets_say_so(loss):
    with pytest.raises(ValueError, match="samples no triplets: plot this run by iterations"):
        figures.triplets_per_step(recipe(loss))


def test_curves_by_iterations_and_by_triplets():
    runs = [
        Record(Path(name), recipe(loss), {}, LINES[:3])
        for name, loss in (("easy", "epshn"), ("all", "margin"))
    ]
    by_step = figures.plot_training_curves(runs).axes[0]
    assert [line.get_xdata().tolist() for line in by_step.lines] == [[0, 30]] * 2
    by_triplet = figures.plot_training_curves(runs, by="triplets").axes[0]
    assert [line.get_xdata().tolist() for line in by_triplet.lines] == [[0, 30 * 64], [0, 30 * 192]]
    assert [line.get_ydata().tolist() for line in by_triplet.lines] == [[10.0, 30.0]] * 2
    assert (by_step.get_xlabel(), by_triplet.get_xlabel()) == ("iterations", "sampled triplets")
    with pytest.raises(ValueError, match="by='epochs'"):
        figures.plot_training_curves(runs, by="epochs")


def test_the_axis_says_whether_the_test_was_looked_at():
    paper, fair = (
        Record(Path(name), recipe().changed([f"train.protocol={name}"]), {}, LINES)
        for name in ("paper", "fair")
    )
    assert figures.plot_training_curves([paper]).axes[0].get_ylabel() == "test P@1 (%)"
    assert figures.plot_training_curves([fair]).axes[0].get_ylabel() == "held-out P@1 (%)"


def reported(name, recipe, test):
    return Record(Path(name), recipe, {"result": {"test": test}}, [])


def test_group_sizes_gather_runs_of_one_loss():
    runs = [
        reported("c", recipe("epshn", images=8), {"R@1": 64.0}),
        reported("a", recipe("epshn", images=2), {"R@1": 50.0}),
        reported("b", recipe("epshn", images=8), {"R@1": 60.0}),
        reported("d", recipe("hphn", images=2), {"R@1": 49.0}),
    ]
    values = figures.by_group_size(runs)
    assert values == {"epshn": {2: [50.0], 8: [64.0, 60.0]}, "hphn": {2: [49.0]}}
    axes = figures.plot_group_size(values).axes[0]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[50.0, 62.0], [49.0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "8"]
    with pytest.raises(ValueError, match="run 'a' has no R@3: it has R@1"):
        figures.by_group_size(runs, "R@3")


def test_any_name_of_a_run_stands_in_the_legend(tmp_path):
    runs = [Record.read(folder(tmp_path / name, LINES)) for name in ("_hidden", "$5 or $6")]
    legend = figures.plot_training_curves(runs).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [" _hidden", r"\$5 or \$6"]


def test_runs_of_one_name_are_told_apart_by_their_parents():
    runs = [Record(Path("runs", parent, "fold 0"), recipe(), {}, LINES) for parent in ("topk", "margin")]
    legend = figures.plot_training_curves(runs).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["topk/fold 0", "margin/fold 0"]
    twice = figures.plot_training_curves([runs[0], runs[0]]).axes[0]
    assert len(twice.lines) == 2


@pytest.mark.parametrize(("curves", "beside"), [(5, False), (6, True)])
def test_a_long_legend_covers_no_curve(curves, beside):
    figure = plot_curves({f"method {number}": ([0, 1], [number, 1]) for number in range(curves)}, ("x", "y"))
    FigureCanvasAgg(figure).draw()
    [axes] = figure.axes
    panel, legend = axes.get_window_extent(), axes.get_legend().get_window_extent()
    assert bool(legend.x0 >= panel.x1) == beside
    assert legend.x1 <= figure.bbox.x1
    assert panel.width > 0.6 * 8 / 2.54 * figure.dpi  # as wide as without it
