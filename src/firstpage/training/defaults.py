"""What `firstpage train --data FOLDER` chooses: settings that fit the data, the weights and the machine.

Everything is written into the recipe of the run, and whatever the user sets is left alone.

- **With pretrained weights**: the product's own objective, `first-page`, at a low learning rate, after three
  epochs for the head alone; a loss without proxies that the user names instead learns at 2e-5, the network
  from the start. Where classes have a handful of images, all of them belong on the first page, so k is the
  number of positives in a batch instead of 1; proxies, learned from a handful, count less; and the learning
  rate falls slowly, along a cosine, instead of by half early and often. A query with a single positive asks
  for a page of five. On fewer than 3,000 training images, which it would overfit, the network learns at a
  third of the rate, unless classes are pairs.
- **From random weights**: the top-k precision loss by −log d, which does not collapse, over pages of several
  lengths, by which a query learns from other negatives than the hardest, too; over a page of all positives
  once most first results of a batch are right; at a high rate.
- **A narrow embedding** of pretrained features, of 128 dimensions or fewer, starts at their principal
  components, and its head learns at ten times the rate.
- **On a CPU, with pretrained weights**: only the head, by the top-k precision loss, on features of three
  stages that are computed once: minutes instead of hours. It has a larger margin, as it overfits less.
- A ResNet-50 with ImageNet weights; on a CPU without them a small network from random weights.
- **Images** of 256 pixels in training and 320 in tests, for a pretrained network; of 224 for a head alone.
- **Batches** of 128 images, four of each class, eight from random weights, more where there are few classes.
- **Epochs** so that small data is seen often and large data a few times.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from firstpage.data.catalog import Catalog
from firstpage.data.splits import split_catalog
from firstpage.data.training_plan import fit_batch_size
from firstpage.errors import UserError
from firstpage.losses.registry import check_settings
from firstpage.models.weights import fetch
from firstpage.recipes.recipe import Recipe
from firstpage.training.default_network import (
    ALL_EPOCHS,
    FIRST_PAGE,
    head_settings,
    network_settings,
    size_settings,
)
from firstpage.training.features import uses_features

IMAGES = 128  # in a batch
PER_CLASS = {True: 4, False: 8}  # with pretrained weights or not: images of a class in a batch, at least
SEEN = 180_000  # training images in all epochs together, if the data is small
EPOCHS = (8, 60)  # at least and at most
COMPILED = 1_000_000  # images from which on the minute that compiling takes pays
FEW = 3000  # training images, which a pretrained network overfits at the rate that suits more
MOST_ALONE = 100_000  # training images whose features a CPU computes in about an hour
SIZES = {"model.stored", "model.crop", "model.resize", "augment.size"}  # go together
FILLED = ("classes", "images", "dim")  # settings of a loss that `make_criteria` fills in and checks
TOPK: dict[str, object] = {"name": "topk", "score": "log"}
LEARNED: dict[str, object] = {"k": [1, 2, 4, 8, 16, 32], "margin": 0.5, "whole": True}  # from random weights
LEARNED_PAIRS: dict[str, object] = LEARNED | {"k": [1, 2, 4, 8, 16, 32, 64]}  # of one positive each
REFINED: dict[str, object] = {"k": 1, "margin": 0.1}  # pretrained features rank well
REFINED_PAIRS: dict[str, object] = {"k": 5, "margin": 0.3}  # likewise, of one positive each
SMALL = 10  # images of a class, at the median, that all belong on the first page
WHOLE = 0.3  # the margin where they do
ALONE = 0.5  # the margin where a head is trained alone, which overfits less
PAGES_ALONE: dict[str, object] = {"k": [1, 2, 4, 8], "margin": 0.2}  # likewise, if classes are larger
PAGES = 30.0  # the weight of the page beside the proxies there
NARROW = 128  # dimensions, up to which a head of random weights loses much of what pretrained features know


def complete_recipe(recipe: Recipe, catalog: Catalog) -> Recipe:
    """Return a recipe with what depends on the data: the batch size, and settings of a bare loss.

    >>> from pathlib import Path
    >>> catalog = Catalog("x", Path(), list("abcdefghij"), np.arange(10) // 5, ["a", "b"], {})
    >>> complete_recipe(Recipe.of({"loss": {"name": "topk"}}), catalog).loss
    {'name': 'topk', 'score': 'log', 'k': [1, 2, 4, 8, 16, 32], 'margin': 0.5, 'whole': True}
    >>> complete_recipe(Recipe.of({"loss": {"name": "first-page"}}), catalog).loss  # five images a class
    {'name': 'first-page', 'k': 3, 'margin': 0.3, 'weight': 30.0}
    """
    _check_loss(recipe)
    typical = _typical_class(catalog)
    positives = min(recipe.batch.images_per_class, round(typical)) - 1  # of a query, in a batch
    several, small = positives > 1, typical <= SMALL
    page = {"k": positives, "margin": WHOLE} if several else REFINED_PAIRS
    if recipe.loss == {"name": "first-page"} and small:
        recipe = replace(recipe, loss=recipe.loss | page | {"weight": PAGES})
    elif recipe.loss == {"name": "topk"}:
        learned = LEARNED if several else LEARNED_PAIRS
        large = REFINED if several else page
        if uses_features(recipe):
            page, large = page | {"margin": ALONE}, PAGES_ALONE
        refined = page if small else large
        recipe = replace(recipe, loss=TOPK | (learned if recipe.model.weights is None else refined))
    return fit_batch_size(recipe, catalog)


def _check_loss(recipe: Recipe) -> None:
    """Tell a typo in the settings of the loss before anything else."""
    if "given" not in recipe.loss:  # which stands for a loss object
        settings = {key: value for key, value in recipe.loss.items() if key not in FILLED}
        check_settings(settings.pop("name", ""), settings)


def _typical_class(catalog: Catalog) -> float:
    """Return how many images a class has, at the median."""
    counts = np.bincount(catalog.labels)
    return float(np.median(counts[counts > 0])) if len(catalog) else 0.0


def default_recipe(
    catalog: Catalog, device: torch.device, changes: Sequence[str] = ()
) -> tuple[Recipe, list[str]]:
    """Return the recipe of a run for which none was named.

    Args:
        catalog: The dataset.
        device: Where it is trained.
        changes: What the user sets, as `section.key=value`. The rest is chosen to go with it.

    Returns:
        The recipe, and what the user should know about the choice.

    >>> from pathlib import Path
    >>> paths = [f"{number}.jpg" for number in range(2000)]
    >>> catalog = Catalog("x", Path(), paths, np.arange(2000) // 5, [str(name) for name in range(400)], {})
    >>> recipe, _ = default_recipe(catalog, torch.device("cpu"), ["model.backbone=small"])
    >>> recipe.loss["name"], recipe.schedule.epochs, recipe.batch.images_per_class
    ('topk', 60, 8)
    >>> weights = ["model.weights=resnet50.safetensors"]
    >>> recipe, (note,) = default_recipe(catalog, torch.device("cpu"), weights)
    >>> recipe.model.backbone, recipe.model.head, recipe.schedule.head_epochs > recipe.schedule.epochs
    ('resnet50', 'pca', True)
    >>> recipe, _ = default_recipe(catalog, torch.device("cpu"), [*weights, "schedule.head_epochs=0"])
    >>> recipe.loss["name"]
    'first-page'
    """
    given = Recipe().changed(changes)
    _check_loss(given)
    chosen = {change.partition("=")[0].strip() for change in changes}
    gpu, (images, classes) = device.type == "cuda", _training_size(catalog, given)
    backbone, weights = given.model.backbone, given.model.weights
    notes: list[str] = []
    if not chosen & {"model.backbone", "model.weights"}:
        backbone, weights, notes = _starting_network(backbone, gpu, images)
    pretrained = weights is not None
    amount = _amount(images, classes, gpu, PER_CLASS[pretrained])
    frozen = [] if gpu or backbone == "small" else [f"schedule.head_epochs={ALL_EPOCHS}"]
    on_features = uses_features(Recipe().changed([*amount, *frozen, *changes]))
    alone = on_features and pretrained and given.model.head != "none"
    if alone:
        network = head_settings(backbone, given.model.dim)
        if "schedule.head_epochs" not in chosen:
            notes.append(
                "training only the head, as this is a CPU; schedule.head_epochs=0 trains the whole network, "
                "which is better and takes a hundred times as long"
            )
    else:
        network = network_settings(
            backbone,
            pretrained,
            given.loss if "loss.name" in chosen else FIRST_PAGE,
            few=images < FEW and _typical_class(catalog) > 2,
            slowly=_typical_class(catalog) <= SMALL,
            narrow=given.model.dim <= NARROW and ":" not in backbone,  # others may have as few features
        )
    settings = [
        f"model.backbone={backbone}",
        *([f"model.weights={weights}"] if pretrained else []),
        *network,
        *([] if not pretrained or backbone == "small" or chosen & SIZES else size_settings(backbone, alone)),
        *amount,
    ]
    return Recipe().changed([*settings, *changes]), notes


def _starting_network(backbone: str, gpu: bool, images: int) -> tuple[str, str | None, list[str]]:
    """Return the network to begin with, its weights, and why if these are random."""
    if not gpu and images > MOST_ALONE:
        note = (
            f"training a small network from random weights, as the features of {images:,} images would take "
            "a CPU hours; model.weights=imagenet computes them"
        )
        return "small", None, [note]
    try:
        fetch(backbone)
    except (OSError, UserError) as error:
        note = f"training from random weights, as there are none of ImageNet: {error}"
        return backbone if gpu else "small", None, [note]
    return backbone, "imagenet", []


def _training_size(catalog: Catalog, given: Recipe) -> tuple[int, int]:
    """Return how many images and classes are trained on; none if the data cannot be split."""
    try:
        split = split_catalog(catalog, np.ones(len(catalog), bool), given.train)
    except UserError:  # `fit` will say so
        return 0, 0
    return len(split.train), len(np.unique(catalog.labels[split.train]))


def _amount(images: int, classes: int, gpu: bool, per_class: int) -> list[str]:
    """Return images per class, epochs, and whether compiling pays."""
    if not images:
        return []
    least, most = EPOCHS
    epochs = min(max(round(SEEN / images), least), most)
    per_class = min(max(per_class, math.ceil(IMAGES / classes)), 16)
    return [
        f"batch.images_per_class={per_class}",
        f"schedule.epochs={epochs}",
        f"train.compile={'true' if gpu and epochs * images >= COMPILED else 'false'}",
        f"train.evaluate_every={max(1, epochs // 10)}",
    ]
