"""What a run needs besides its model, made from a recipe that has been found to fit the data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from firstpage.data.augment import Augment
from firstpage.data.catalog import Catalog
from firstpage.data.sampler import GroupSampler
from firstpage.data.splits import DataSplit, split_catalog
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.recipes.recipe import Recipe
from firstpage.training.criteria import make_criteria
from firstpage.training.memory import Memory, check_memory
from firstpage.training.seeding import draws

__all__ = ["Plan", "make_plan"]


class Plan(NamedTuple):
    """Who is learned from, in which batches, as what the network sees them, and by which losses.

    Attributes:
        roles: the catalog's rows by what a run does with them.
        labels: [train] classes of the training rows, numbered anew: proxies and β have no gaps then.
        sampler: of the global batches.
        augment: from stored pixels to the network's input.
        criteria: the loss of each level.
        memories: the cross-batch memory of each level, or none.

    >>> Plan._fields
    ('roles', 'labels', 'sampler', 'augment', 'criteria', 'memories')
    """

    roles: DataSplit
    labels: Tensor
    sampler: GroupSampler
    augment: Augment
    criteria: nn.ModuleList
    memories: list[Memory]


def make_plan(
    recipe: Recipe, catalog: Catalog, readable: NDArray[np.bool_] | None, model: Embedder, world: int = 1
) -> Plan:
    """Plan a run on the device of its model.

    Args:
        recipe: of the run.
        catalog: of the run.
        readable: which of its images are; None takes all, to hear of errors before they are decoded.
        model: that is to learn.
        world: processes that share a batch.

    Raises:
        UserError: the recipe does not fit the data.

    >>> from pathlib import Path
    >>> letters = list("abcdefghijklmnopqrst")
    >>> catalog = Catalog("x", Path(), letters, np.arange(20) // 2, letters[:10], {})
    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> make_plan(Recipe.of({"batch": {"size": 4, "images_per_class": 2}}), catalog, None, model).labels
    tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7])
    """
    if recipe.batch.size < world:
        raise UserError(f"batch.size={recipe.batch.size}: there are {world} ranks: give each an image")
    if recipe.train.sync_batch_norm and recipe.batch.chunk:
        raise UserError(
            "train.sync_batch_norm=true: with batch.chunk there is no whole batch to take statistics of: "
            "leave one of the two out"
        )
    seed, place = recipe.train.seed, model.device
    roles = split_catalog(
        catalog, np.ones(len(catalog), bool) if readable is None else readable, recipe.train
    )
    for search in (roles.validation, roles.test):
        if search is not None:
            search.check(catalog.labels)
    names, codes = np.unique(catalog.labels[roles.train], return_inverse=True)
    try:
        sampler = GroupSampler(
            codes,
            recipe.batch.size,
            recipe.batch.images_per_class,
            oversample=recipe.batch.oversample,
            seed=seed,
        )
    except ValueError as error:  # in the words of a recipe
        said = str(error).removeprefix("GroupSampler(").replace("):", ":", 1)
        for name in ("batch_size", "images_per_class"):
            said = said.replace(name, f"batch.{name.removeprefix('batch_')}")
        raise UserError(said) from None
    settings = recipe.augment
    augment = Augment(
        model.preprocess.size,
        settings.crop,  # type: ignore[arg-type]
        settings.scale,
        settings.ratio,
        settings.flip,
        settings.jitter,
        model.backbone.mean,
        model.backbone.std,
        fused=recipe.train.compile,
    )
    with draws(place, "plan", seed):  # however often it is made, proxies begin alike
        criteria = make_criteria(recipe, model, len(names), len(catalog)).to(place)
    memories = []
    for part in criteria if recipe.memory.size else ():
        check_memory(part, recipe.memory.size, len(roles.train))  # type: ignore[arg-type]
        memories.append(Memory(recipe.memory.size, model.level_dim, recipe.memory.start).to(place))
    return Plan(roles, torch.from_numpy(codes).to(place), sampler, augment, criteria, memories)
