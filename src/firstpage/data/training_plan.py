"""What a run trains on, or why it cannot: one rule for training, and for the check of a dataset before it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from firstpage.data.catalog import Catalog
from firstpage.data.splits import DataSplit, split_catalog
from firstpage.errors import UserError
from firstpage.recipes.recipe import Recipe
from firstpage.recipes.settings import BatchSettings


class BatchTooLarge(UserError):  # noqa: N818 - what it is, not that it is an error
    """The training images do not fill a batch; the message names a size that they fill.

    >>> str(BatchTooLarge("batch size 128: use at most 28"))
    'batch size 128: use at most 28'
    """


SPARE = 0.1  # share of the images that may turn out to be unreadable before a chosen batch size is too large


def fit_batch_size(recipe: Recipe, catalog: Catalog) -> Recipe:
    """Return the recipe with a batch size that the training classes of a dataset fill, if it has none.

    Args:
        recipe: The recipe of the run. A `batch.size` of its own is left alone.
        catalog: The dataset.

    >>> from pathlib import Path
    >>> letters = list("abcdefghijklmnopqrst")
    >>> catalog = Catalog("x", Path(), letters, np.arange(20) // 2, letters[:10], {})
    >>> fit_batch_size(Recipe(), catalog).batch.size
    11
    """
    batch = recipe.batch
    if batch.size is not None or batch.sampler != "group":
        return recipe
    chosen = replace(recipe, batch=replace(batch, size=batch.images))
    readable = np.ones(len(catalog), bool)
    try:
        split = split_catalog(catalog, readable, recipe.train)
    except UserError:  # `plan_training` will say so
        return chosen
    groups = group_sizes(np.unique(catalog.labels[split.train], return_counts=True)[1], batch)
    most = _most_in_every_fold(chosen, catalog, readable, groups)
    if most < batch.images:
        most = max(most - int(SPARE * most), min(most, int(groups.max()) + 1))
    return replace(recipe, batch=replace(batch, size=min(most, batch.images)))


def plan_training(
    recipe: Recipe, catalog: Catalog, readable: NDArray[np.bool_] | None = None
) -> tuple[DataSplit, NDArray[np.int64]]:
    """Split a dataset by a recipe, or say why a run with this recipe cannot be trained on it.

    Args:
        recipe: The recipe of the run.
        catalog: The dataset.
        readable: [N] Which of its images can be decoded. None takes all, to find errors before decoding.

    Returns:
        The split, and the classes of its training rows, numbered without gaps.

    Raises:
        BatchTooLarge: The training images do not fill a batch.
        UserError: The recipe does not fit the data in another way.

    >>> from pathlib import Path
    >>> letters = list("abcdefghijklmnopqrst")
    >>> catalog = Catalog("x", Path(), letters, np.arange(20) // 2, letters[:10], {})
    >>> plan_training(Recipe.of({"batch": {"size": 128}}), catalog)
    Traceback (most recent call last):
    firstpage.data.training_plan.BatchTooLarge: batch size 128 with 4 images per class: the 6 classes give ...
    """
    usable = np.ones(len(catalog), bool) if readable is None else readable
    split = split_catalog(catalog, usable, recipe.train)
    for test in (split.validation, split.test):
        if test is not None:
            test.check(catalog.labels)
    labels = np.unique(catalog.labels[split.train], return_inverse=True)[1]
    if recipe.batch.sampler == "group":
        groups = group_sizes(np.bincount(labels), recipe.batch)
        check_batch_size(groups, recipe.batch, most=_most_in_every_fold(recipe, catalog, usable, groups))
    return split, labels


def group_sizes(counts: NDArray[np.int64], settings: BatchSettings) -> NDArray[np.int64]:
    """Return the number of images that each class gives to a batch.

    Args:
        counts: Images of each class.
        settings: The batches.

    >>> group_sizes(np.array([9, 3]), BatchSettings(images_per_class=4)).tolist()
    [4, 3]
    """
    group = np.full_like(counts, settings.images_per_class)
    return group if settings.oversample else np.minimum(group, counts)


def check_batch_size(
    groups: NDArray[np.int64], settings: BatchSettings, *, world: int = 1, most: int | None = None
) -> None:
    """Raise an error if the classes do not fill a batch, or one of them fills it alone.

    Args:
        groups: Images that each class gives to a batch.
        settings: The batches.
        world: Number of processes.
        most: Largest size to recommend. Defaults to all images that the classes give.

    Raises:
        BatchTooLarge: The classes do not fill a batch.
        UserError: One class would fill it, without negatives, or no batch size is possible.

    >>> check_batch_size(np.array([4, 3]), BatchSettings(size=3))
    Traceback (most recent call last):
    firstpage.errors.UserError: batch size 3 with 4 images per class: one class would fill a batch, ...
    """
    size, largest, available = settings.images, int(groups.max()), int(groups.sum())
    problem = f"batch size {size} with {settings.images_per_class} images per class"
    lowest, highest = -(-(largest + 1) // world) * world, available // world * world
    if lowest > highest:
        among = f" for {world} ranks" if world > 1 else ""
        raise UserError(
            f"{problem}: no size is possible{among}: the {len(groups)} classes give {available} images, and "
            f"one class would fill a batch, without negatives; use more classes"
        )
    if largest >= size:
        fewer = f" or {size - 1} images per class" if size > 1 else ""
        raise UserError(
            f"{problem}: one class would fill a batch, without negatives; use a batch size above "
            f"{lowest - 1}{fewer}"
        )
    if available < size:
        fits = highest if most is None or most < lowest else min(most, highest)
        raise BatchTooLarge(
            f"{problem}: the {len(groups)} classes give only {available} images; use at most {fits} "
            f"(--set batch.size={fits})"
        )


def _most_in_every_fold(
    recipe: Recipe, catalog: Catalog, readable: NDArray[np.bool_], groups: NDArray[np.int64]
) -> int:
    """Return the largest batch size that all folds of the recipe fill, if its own fold does not fill its."""
    most = int(groups.sum())
    for fold in range(recipe.train.folds if most < recipe.batch.images else 0):
        try:
            split = split_catalog(catalog, readable, replace(recipe.train, fold=fold))
        except UserError:  # fewer classes than folds
            break
        counts = np.unique(catalog.labels[split.train], return_counts=True)[1]
        most = min(most, int(group_sizes(counts, recipe.batch).sum()))
    return most
