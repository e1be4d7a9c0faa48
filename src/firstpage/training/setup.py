"""The model, data split, sampler, losses and memories of a run, from a recipe validated against the data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from firstpage._plugins import import_object
from firstpage.data.augment import Augment
from firstpage.data.catalog import Catalog
from firstpage.data.framing import as_pair
from firstpage.data.meta_classes import group_classes
from firstpage.data.neighbor_sampler import NeighborSampler
from firstpage.data.sampler import GroupSampler
from firstpage.data.splits import DataSplit
from firstpage.data.training_plan import plan_training
from firstpage.errors import UserError
from firstpage.losses import Ensemble
from firstpage.models.embedder import Embedder
from firstpage.recipes.recipe import Recipe
from firstpage.recipes.settings import BatchSettings
from firstpage.training.criteria import make_criteria
from firstpage.training.features import uses_features
from firstpage.training.feedback import MarkedSampler, marked_rows
from firstpage.training.launching import sync_batch_norm
from firstpage.training.memory import Memory, check_memory
from firstpage.training.seeding import seeded


class BatchSampler(Protocol):
    """What the loop asks of a sampler; `GroupSampler` is one, and `batch.sampler` may name another.

    Iterating yields the global batches of one epoch as lists of rows, and continues in the middle of an epoch
    after `load_state_dict`. All ranks make the same sampler and get the same batches.

    A class of your own is created as
    `MySampler(labels, batch_size, images_per_class, oversample=..., seed=...)`.

    It may also have `survey(vectors, labels)`, and so may a loss: see `TrainJob.survey`.
    """

    @property
    def epoch(self) -> int:
        """Number of epochs finished so far."""
        ...

    def __iter__(self) -> Iterator[list[int]]: ...
    def __len__(self) -> int: ...
    def state_dict(self) -> Mapping[str, Any]:
        """Return what it takes to continue."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...


@dataclass(frozen=True, eq=False)
class TrainSetup:
    """The data split, batches, augmentation and losses of a run.

    Attributes:
        split: The rows of the catalog to train on, to select the best model on, and to test on.
        rows: Rows to draw batches from: those to train on, and after them two for each marked pair of images.
        labels: [rows] Classes of the training rows, numbered without gaps, for proxies and β, or their
            groups (`train.meta_classes`). Negative ones are those of marked pairs: see `training.feedback`.
        marked: Number of images of marked pairs at the end of each batch.
        sampler: Plans the global batches.
        augment: Turns stored pixels into network input.
        criteria: The loss of each level, as one ensemble.
        memories: The cross-batch memory of each level, or none.
    """

    split: DataSplit
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    sampler: BatchSampler
    augment: Augment
    criteria: Ensemble
    memories: list[Memory]
    marked: int = 0


def make_model(recipe: Recipe, device: torch.device) -> Embedder:
    """Return the model of a run as it starts, on its device.

    >>> recipe = Recipe.of({"model": {"backbone": "small", "dim": 4}})
    >>> make_model(recipe, torch.device("cpu")).dim
    4
    """
    torch.manual_seed(recipe.train.seed)
    model = Embedder(recipe.model).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recipe.train.sync_batch_norm:
        sync_batch_norm(model)
    return model


def prepare(
    recipe: Recipe,
    catalog: Catalog,
    readable: NDArray[np.bool_] | None,
    model: Embedder,
    *,
    world_size: int = 1,
    loss: nn.Module | None = None,
) -> TrainSetup:
    """Prepare a run on the device of its model.

    Args:
        recipe: The recipe of the run.
        catalog: The dataset.
        readable: [N] Which of its images can be decoded. None takes all, to find errors before decoding.
        model: The model to train.
        world_size: Number of processes that share a batch.
        loss: A loss object to use instead of the recipe's.

    Raises:
        UserError: The recipe does not fit the data.

    >>> from pathlib import Path
    >>> letters = list("abcdefghijklmnopqrst")
    >>> catalog = Catalog("x", Path(), letters, np.arange(20) // 2, letters[:10], {})
    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> prepare(Recipe.of({"batch": {"size": 4, "images_per_class": 2}}), catalog, None, model).labels
    array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    """
    if recipe.batch.images < world_size:
        raise UserError(f"batch.size={recipe.batch.images}: there are {world_size} ranks: give each an image")
    if recipe.train.sync_batch_norm and recipe.batch.chunk:
        raise UserError(
            "train.sync_batch_norm=true: with batch.chunk there is no whole batch to take statistics of: "
            "use only one of the two"
        )
    seed, groups = recipe.train.batch_seed, recipe.train.meta_classes
    split, classes = plan_training(recipe, catalog, readable)
    labels = group_classes(classes, groups, recipe.train.seed, recipe.train.member) if groups else classes
    settings = recipe.augment
    size = model.preprocess.size if settings.size is None else settings.size
    model.backbone.check_size(*as_pair(size))
    augment = Augment(
        size,
        settings.crop,  # type: ignore[arg-type]
        settings.scale,
        settings.ratio,
        settings.flip,
        settings.jitter,
        model.backbone.mean,
        model.backbone.std,
        fused=recipe.train.compile,
    )
    with seeded(model.device, "plan", seed):  # proxies start with the same values however often it is called
        count = int(labels.max()) + 1
        criteria = make_criteria(recipe.loss, model, count, len(catalog), loss, recipe.ensemble)
        criteria.to(model.device)
    if uses_features(recipe) and recipe.model.head == "none" and not list(criteria.parameters()):
        raise UserError(
            f"schedule.head_epochs={recipe.schedule.head_epochs}: without a head (model.head='none') nothing "
            "would be trained: set it to 0, or choose a head"
        )
    memories = []
    for part, dim in zip(criteria, model.level_dims, strict=True) if recipe.memory.size else ():
        check_memory(part, recipe.memory.size, len(split.train))
        memory = Memory(recipe.memory.size, dim, recipe.memory.start)
        memories.append(memory.to(model.device))
    # A run without epochs draws no batch, so that the data of a baseline need not fill one.
    batch = recipe.batch if recipe.schedule.epochs else replace(recipe.batch, size=2, images_per_class=1)
    sampler = _make_sampler(batch, classes, seed)
    if catalog.marks is None:
        return TrainSetup(split, split.train, labels, sampler, augment, criteria, memories)
    with_marks = MarkedSampler(sampler, len(labels), len(catalog.marks), seed)
    rows, kinds = marked_rows(catalog.marks, len(catalog))
    rows, labels = np.concatenate([split.train, rows]), np.concatenate([labels, kinds])
    return TrainSetup(split, rows, labels, with_marks, augment, criteria, memories, with_marks.marked)


def _make_sampler(settings: BatchSettings, labels: NDArray[np.int64], seed: int) -> BatchSampler:
    if settings.sampler == "group":
        neighbors = settings.neighbors
        kind: Any = partial(NeighborSampler, neighbors=neighbors) if neighbors else GroupSampler
    elif ":" in settings.sampler:
        kind = import_object(settings.sampler, "batch.sampler")
    else:
        raise UserError(
            f"batch.sampler={settings.sampler!r}: use 'group', or your own class as 'package.module:Class'"
        )
    sampler: BatchSampler = kind(
        labels, settings.images, settings.images_per_class, oversample=settings.oversample, seed=seed
    )
    return sampler
