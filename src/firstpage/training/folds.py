"""Every fold of the `fair` protocol, one after the other, and their mean."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.training_plan import plan_training
from firstpage.errors import UserError
from firstpage.evaluation.intervals import mean_and_half
from firstpage.recipes.recipe import Recipe
from firstpage.training.defaults import complete_recipe
from firstpage.training.display import SHOWN
from firstpage.training.loop import fit
from firstpage.training.result import Result


def fit_folds(
    recipe: Recipe,
    catalog: Catalog,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,  # noqa: ANN401
) -> list[Result]:
    """Train once for each fold of held-out classes; each model is tested once, at its end.

    Args:
        recipe: A recipe with `train.protocol="fair"`; its `train.fold` is replaced.
        catalog: The images.
        folder: Will contain the run folders `fold-0`, `fold-1`, …; None keeps nothing.
        options: Those of `fit`.

    Raises:
        UserError: The recipe's protocol has no folds, or the data has a validation split.

    >>> from pathlib import Path
    >>> recipe = Recipe().changed(["train.protocol=paper"])
    >>> fit_folds(recipe, Catalog("x", Path(), ["a"], np.zeros(1, int), ["a"], {}))
    Traceback (most recent call last):
    firstpage.errors.UserError: train.protocol='paper': it has no folds: use train.protocol='fair'
    """
    if recipe.train.protocol != "fair":
        raise UserError(
            f"train.protocol={recipe.train.protocol!r}: it has no folds: use train.protocol='fair'"
        )
    if "val" in catalog.splits:
        raise UserError(
            "--folds: the data has a val split, so there are no folds to select by: remove the option"
        )
    chosen = [replace(recipe, train=replace(recipe.train, fold=fold)) for fold in range(recipe.train.folds)]
    for each in chosen:  # before hours are spent on the first ones
        plan_training(complete_recipe(each, catalog), catalog)
    return [
        fit(
            each,
            catalog,
            None if folder is None else Path(folder, f"fold-{fold}"),
            **options,
        )
        for fold, each in enumerate(chosen)
    ]


def summary(results: Sequence[Result]) -> str:
    """Return a line for each fold, the mean with its 95 % interval (Student's t), and the models' folders.

    >>> results = [Result(None, {"P@1": 50.0}, {"P@1": value}, 1) for value in (60.0, 62.0)]
    >>> print(summary(results))
                 P@1
    fold 0      60.0
    fold 1      62.0
    mean        61.0
    ± (95 %)    12.7
    """
    tests = [result.test or result.best for result in results]
    names = [name for name in SHOWN if name in tests[0]]
    table = np.array([[test[name] for name in names] for test in tests])  # [folds, metrics]
    mean, half = np.transpose([mean_and_half(column) for column in table.T])
    rows = [(f"fold {fold}", line) for fold, line in enumerate(table)]
    rows += [("mean", mean), ("± (95 %)", half)]
    head = f"{'':10}" + "".join(f"{name:>7}" for name in names)
    lines = [head] + [f"{title:10}" + "".join(f"{x:7.1f}" for x in line) for title, line in rows]
    return "\n".join(lines + [f"model in {result.folder / 'best'}" for result in results if result.folder])
