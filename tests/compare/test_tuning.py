"""The search of settings: the same trials for all methods, none on a test image or a reported seed."""

from dataclasses import replace

import numpy as np
import pytest

from firstpage.compare import Table, cell_trainer, run_cells
from firstpage.compare.rendering import to_html, to_markdown
from firstpage.compare.spaces import Space
from firstpage.compare.summary import summarize
from firstpage.compare.tuning import SEED, read_searches, trial_cells, tuned_table
from firstpage.errors import UserError

TABLE = {
    "title": "Tuned",
    "metrics": ["R@1"],
    "recipe": {
        "model": {"backbone": "small", "dim": 8, "stored": 32, "crop": 32},
        "batch": {"size": 16, "images_per_class": 4},
        "schedule": {"epochs": 2},
        "augment": {"crop": "center", "flip": 0.0},
        "train": {"evaluate_untrained": False},
    },
    "tune": {"optimizer": {"lr": {"low": 1e-4, "high": 1e-2}}, "schedule.epochs": 1},
    "row": [
        {"name": "Untrained", "schedule": {"epochs": 0}},
        {"name": "Ranked list", "loss": {"name": "rll"}},
        {"name": "Top-k", "loss": {"name": "topk", "k": 3}},
    ],
}


def test_trials_are_spread_and_the_same_for_every_method():
    lists = Space.of({"loss.k": [1, 2, 3, 4], "batch.size": [32, 64, 96]})
    settings = lists.settings(20)
    assert len(settings) == 12  # all that there are, each once
    assert len({tuple(each.values()) for each in settings}) == 12
    rates = [each["optimizer.lr"] for each in Space.of({}).settings(9)]
    assert rates[:4] == [
        each["optimizer.lr"] for each in Space.of({}).settings(4)
    ]  # more of them add to these
    thirds = np.floor(3 * (np.log(rates) - np.log(3e-6)) / np.log(100)).astype(int)
    assert np.bincount(thirds).tolist() == [3, 4, 2]  # of nine, a third each, about
    trials = trial_cells(Table.of(TABLE), 3)
    assert {trial.row.name for trial in trials} == {"Ranked list", "Top-k"}  # the untrained network has none
    assert {(trial.seed, trial.protocol, trial.recipe.schedule.epochs) for trial in trials} == {
        (SEED, "fair", 1)
    }
    of = {
        name: [trial.recipe.optimizer for trial in trials if trial.row.name == name]
        for name in ("Ranked list", "Top-k")
    }
    assert of["Ranked list"] == of["Top-k"]


@pytest.mark.parametrize(
    ("tune", "complaint"),
    [
        ({"optimizer.lr": {"low": 1.0, "high": 0.1}}, "optimizer.lr: write { low = 1e-5"),
        ({"optimizer.lr": {"low": 1.0}}, "optimizer.lr: write { low = 1e-5"),
        ({"optimizer.lr": []}, "give a list of different values"),
        ({"optimizer.lr": [1, 1]}, "give a list of different values"),
        ({"optimizer.rl": [1e-4, 1e-5]}, "row 'Ranked list': optimizer.rl: no such setting"),
    ],
)
def test_what_is_wrong_with_a_space_is_named(tune, complaint):
    with pytest.raises(UserError) as raised:
        trial_cells(Table.of(TABLE | {"tune": tune}), 2)
    assert complaint in str(raised.value)


def test_a_reported_seed_is_not_tuned_on():
    for count, seeds, complaint in ((2, [SEED], "--seeds: 1000"), (-1, [0], "--tune -1")):
        with pytest.raises(UserError, match=complaint):
            trial_cells(Table.of(TABLE), count, seeds)


def test_methods_are_trained_with_the_settings_of_their_best_trials(first_glyphs, tmp_path, monkeypatch):
    table, real, seen, results = Table.of(TABLE), cell_trainer.fit, [], []

    def fit(recipe, data, *arguments, **options):
        """Train the first trial; all others are worth the more, the smaller their learning rate."""
        trial = recipe.train.seed == SEED
        assert ("test" in data.splits) != trial
        seen.append(recipe)
        if trial and recipe.loss["name"] == "topk" and recipe.optimizer.lr == 1e-3:
            raise UserError("collapsed")
        if not results:
            results.append(real(recipe, data, *arguments, **options))
            assert results[0].test is None
            return results[0]
        metrics = results[0].best | {"P@1": 100 - recipe.optimizer.lr}
        return replace(results[0], best=metrics, test=metrics)

    monkeypatch.setattr(cell_trainer, "fit", fit)
    lines = []
    options = {"cache": tmp_path / "cache", "progress": False, "device": "cpu", "show": lines.append}
    assert run_cells(table, first_glyphs, tmp_path / "out", tune=2, **options)
    assert lines[0] == "4 trials, 0 of them done"
    assert lines[5] == "3 trainings, 0 of them done"
    assert "Ranked list, trial 0, seed 1000, fair: P@1 of held-out classes" in lines[1]
    ranked, topk = searches = read_searches(table, first_glyphs, tmp_path / "out", 2)
    assert [search.complete for search in searches] == [True, True]
    assert (sorted(ranked.scores), sorted(topk.scores)) == ([0, 1], [1])
    rates = [settings["optimizer.lr"] for settings in ranked.settings]
    trained = {
        recipe.loss["name"]: recipe for recipe in seen if recipe.train.seed != SEED and recipe.schedule.epochs
    }
    assert trained["rll"].optimizer.lr == rates[1] == 3.16e-4  # the better one
    assert trained["topk"].optimizer.lr == rates[1]
    assert {recipe.schedule.epochs for recipe in trained.values()} == {2}  # not the trials'
    # Nothing is trained twice, not even a trial that has failed.
    seen.clear()
    assert run_cells(table, first_glyphs, tmp_path / "out", tune=2, **options)
    assert not seen
    measured = summarize(tuned_table(table, searches), first_glyphs, tmp_path / "out", [0], ["paper"])
    assert [len(each.cells) for each in measured] == [1, 1, 1]
    text = to_markdown(table, measured, searches)
    assert (
        "Every method had 2 trials of the same settings (optimizer.lr 0.0001 to 0.01; in all trials" in text
    )
    assert "Not tuned: Untrained." in text
    assert f"| Top-k | 2 | 1 | {topk.scores[1]:.1f} |" in text
    assert f"optimizer.lr={rates[1]}" in to_html(table, measured, searches)
