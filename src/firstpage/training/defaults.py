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
- **On a GPU** a ResNet-50 with ImageNet weights; on a CPU a small network from random weights.
- **Images** of 256 pixels in training and 320 in tests, for a pretrained network.
- **Batches** of 128 images, four of each class, eight from random weights, more where there are few classes.
- **Epochs** so that small data is seen often and large data a few times.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from firstpage.data.catalog import Catalog
from firstpage.data.splits import split_catalog
from firstpage.data.training_plan import fit_batch_size
from firstpage.errors import UserError
from firstpage.losses.registry import check_settings, required_arguments
from firstpage.models.weights import fetch
from firstpage.recipes.recipe import Recipe

IMAGES = 128  # in a batch
PER_CLASS = {True: 4, False: 8}  # with pretrained weights or not: images of a class in a batch, at least
SEEN = 180_000  # training images in all epochs together, if the data is small
EPOCHS = (8, 60)  # at least and at most
COMPILED = 1_000_000  # images from which on the minute that compiling takes pays
FEW = 3000  # training images, which a pretrained network overfits at the rate that suits more
SIZES = {"model.stored", "model.crop", "model.resize", "augment.size"}  # go together
FILLED = ("classes", "images", "dim")  # settings of a loss that `make_criteria` fills in and checks
TOPK: dict[str, object] = {"name": "topk", "score": "log"}
LEARNED: dict[str, object] = {"k": [1, 2, 4, 8, 16, 32], "margin": 0.5, "whole": True}  # from random weights
LEARNED_PAIRS: dict[str, object] = LEARNED | {"k": [1, 2, 4, 8, 16, 32, 64]}  # of one positive each
REFINED: dict[str, object] = {"k": 1, "margin": 0.1}  # pretrained features rank well
REFINED_PAIRS: dict[str, object] = {"k": 5, "margin": 0.3}  # likewise, of one positive each
FIRST_PAGE: dict[str, object] = {"name": "first-page"}
SMALL = 10  # images of a class, at the median, that all belong on the first page
WHOLE = 0.3  # the margin where they do
PAGES = 30.0  # the weight of the page beside the proxies there
NARROW = 128  # dimensions, up to which a head of random weights loses much of what pretrained features know
HALVED = ("schedule.milestones=[0.17, 0.33, 0.5, 0.67, 0.83]", "schedule.factor=0.5")


def complete_recipe(recipe: Recipe, catalog: Catalog) -> Recipe:
    """Return a recipe with what depends on the data: the batch size, and settings of a bare loss.

    >>> from pathlib import Path
    >>> catalog = Catalog("x", Path(), list("abcdefghij"), np.arange(10) // 5, ["a", "b"], {})
    >>> complete_recipe(Recipe.of({"loss": {"name": "topk"}}), catalog).loss
    {'name': 'topk', 'score': 'log', 'k': [1, 2, 4, 8, 16, 32], 'margin': 0.5, 'whole': True}
    >>> complete_recipe(Recipe.of({"loss": {"name": "first-page"}}), catalog).loss  # five images a class
    {'name': 'first-page', 'k': 3, 'margin': 0.3, 'weight': 30.0}
    """
    if "given" not in recipe.loss:  # which stands for a loss object
        settings = {key: value for key, value in recipe.loss.items() if key not in FILLED}
        check_settings(settings.pop("name", ""), settings)  # a typo is told before anything else
    typical = _typical_class(catalog)
    positives = min(recipe.batch.images_per_class, round(typical)) - 1  # of a query, in a batch
    several, small = positives > 1, typical <= SMALL
    page = {"k": positives, "margin": WHOLE} if several else REFINED_PAIRS
    if recipe.loss == {"name": "first-page"} and small:
        recipe = replace(recipe, loss=recipe.loss | page | {"weight": PAGES})
    elif recipe.loss == {"name": "topk"}:
        learned = LEARNED if several else LEARNED_PAIRS
        refined = page if small or not several else REFINED
        recipe = replace(recipe, loss=TOPK | (learned if recipe.model.weights is None else refined))
    return fit_batch_size(recipe, catalog)


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
    >>> recipe, _ = default_recipe(catalog, torch.device("cpu"))
    >>> recipe.model.backbone, recipe.loss["name"], recipe.schedule.epochs, recipe.batch.images_per_class
    ('small', 'topk', 60, 8)
    >>> recipe, _ = default_recipe(catalog, torch.device("cpu"), ["model.weights=resnet50.safetensors"])
    >>> recipe.model.backbone, recipe.loss["name"]
    ('resnet50', 'first-page')
    """
    given = Recipe().changed(changes)
    chosen = {change.partition("=")[0].strip() for change in changes}
    backbone, weights, notes = given.model.backbone, given.model.weights, []
    if "model.backbone" not in chosen and device.type != "cuda" and weights is None:
        backbone = "small"
    elif not chosen & {"model.backbone", "model.weights"}:
        try:
            fetch(backbone)
            weights = "imagenet"
        except (OSError, UserError) as error:
            notes.append(f"training from random weights, as there are none of ImageNet: {error}")
    settings = [
        f"model.backbone={backbone}",
        *([f"model.weights={weights}"] if weights is not None else []),
        *_network(
            backbone,
            weights is not None,
            given.loss if "loss.name" in chosen else FIRST_PAGE,
            few=_training_size(catalog, given)[0] < FEW and _typical_class(catalog) > 2,
            slowly=_typical_class(catalog) <= SMALL,
            narrow=given.model.dim <= NARROW and ":" not in backbone,  # others may have as few features
        ),
        *([] if weights is None or backbone == "small" or chosen & SIZES else _sizes(backbone)),
        *_amount(catalog, given, "cuda" if device.type == "cuda" else "cpu", PER_CLASS[weights is not None]),
    ]
    return Recipe().changed([*settings, *changes]), notes


def _network(
    backbone: str, pretrained: bool, loss: Mapping[str, object], *, few: bool, slowly: bool, narrow: bool
) -> list[str]:
    """Return loss, rates, schedule, and the image size of the small network."""
    transformer = "vit" in backbone
    if pretrained:
        network = [
            "loss.name=first-page",
            f"model.pooling={'cls' if transformer else 'avg+max'}",
            f"model.freeze_batch_norm={'false' if transformer else 'true'}",
            *(["model.head=pca"] if narrow else []),
        ]
        faster = 10.0 if narrow else 1.0  # the head
        if not transformer and not _has_proxies(loss):
            return [*network, "optimizer.lr=2e-5", f"optimizer.head={5.0 * faster}", "optimizer.loss=100.0"]
        # Head and proxies always learn at the same rate, proxies at 0.01.
        lr, head, proxies = (
            (1e-5, 1.0, 1000.0) if transformer else (3e-5, 3.0, 300.0) if few else (1e-4, 1.0, 100.0)
        )
        return [
            *network,
            f"optimizer.lr={lr}",
            f"optimizer.head={head * faster}",
            f"optimizer.loss={proxies}",
            "schedule.head_epochs=3",
            *(["schedule.kind=cosine"] if slowly and loss == FIRST_PAGE else HALVED),
        ]
    size = ["model.dim=128", "model.stored=72", "model.crop=64"] if backbone == "small" else []
    return [
        "loss.name=topk",
        *size,
        "optimizer.lr=3e-3" if backbone == "small" else "optimizer.lr=1e-3",
        "optimizer.head=1.0",
        "optimizer.weight_decay=1e-2",
        "schedule.kind=cosine",
        "schedule.warmup=1.0",
    ]


def _has_proxies(loss: object) -> bool:
    """Return whether a loss learns vectors for classes: it has to know how many, and how long they are."""
    if not isinstance(loss, Mapping) or not isinstance(name := loss.get("name"), str):
        return False  # `complete_recipe` will say so
    if name == "sum":
        parts = loss.get("parts")
        return isinstance(parts, list) and any(_has_proxies(part) for part in parts)
    return {"classes", "dim"} <= set(required_arguments(name))


def _sizes(backbone: str) -> list[str]:
    """Return image sizes. Random crops show objects larger than whole images do: tests take larger ones."""
    if backbone.startswith("timm:"):  # many accept one size only
        return []
    if "vit" in backbone:
        return ["model.stored=320", "model.crop=308", "augment.size=224", "augment.scale=[0.25, 1.0]"]
    return ["model.stored=352", "model.crop=320", "augment.size=256", "augment.scale=[0.08, 1.0]"]


def _training_size(catalog: Catalog, given: Recipe) -> tuple[int, int]:
    """Return how many images and classes are trained on; none if the data cannot be split."""
    try:
        split = split_catalog(catalog, np.ones(len(catalog), bool), given.train)
    except UserError:  # `fit` will say so
        return 0, 0
    return len(split.train), len(np.unique(catalog.labels[split.train]))


def _amount(catalog: Catalog, given: Recipe, device: str, per_class: int) -> list[str]:
    """Return images per class, epochs, and whether compiling pays."""
    images, classes = _training_size(catalog, given)
    if not images:
        return []
    least, most = EPOCHS
    epochs = min(max(round(SEEN / images), least), most)
    per_class = min(max(per_class, math.ceil(IMAGES / classes)), 16)
    return [
        f"batch.images_per_class={per_class}",
        f"schedule.epochs={epochs}",
        f"train.compile={'true' if device == 'cuda' and epochs * images >= COMPILED else 'false'}",
        f"train.evaluate_every={max(1, epochs // 10)}",
    ]
