"""The losses of a run, fitted to its model and its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from firstpage import losses
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.recipes.recipe import Recipe
from firstpage.training.memory import Memory

__all__ = ["make_criteria", "total"]


def make_criteria(recipe: Recipe, model: Embedder, classes: int, images: int) -> nn.ModuleList:
    """The loss of each level, told the number of classes, images and dimensions where it asks for them.

    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> make_criteria(Recipe(), model, classes=10, images=100)
    ModuleList(
      (0): TopKPrecision(reduction='mean', k=1, margin=0.1, decorrelation=0.0)
    )
    """
    settings = dict(recipe.loss)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise UserError("loss.name: say which, such as loss.name='topk'; losses.names() lists all")
    if settings.get("reduction") == "none":
        raise UserError(
            "loss.reduction='none': training needs one number: choose mean or sum, or leave it out"
        )
    if name == "proxy-nca":
        settings = {"classes": classes, "dim": model.level_dim} | settings
    for key, count in (("classes", classes), ("images", images)):
        if settings.get(key) is True:
            settings[key] = count
        elif isinstance(settings.get(key), int) and settings[key] < count:
            raise UserError(
                f"loss.{key}={settings[key]}: the data has {count}: write loss.{key}=true to fit it"
            )
    return nn.ModuleList(losses.create(name, **settings) for _ in model.heads)


def total(
    criteria: Iterable[Callable[..., Tensor]],
    levels: Sequence[Tensor],
    labels: Tensor,
    ids: Tensor,
    memories: Iterable[Memory] = (),
) -> Tensor:
    """The sum of all levels' losses; each level's candidates are the batch, and its memory if it has one.

    >>> labels, ids = torch.tensor([0, 0, 1, 1]), torch.arange(4)
    >>> level = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
    >>> total([losses.TopKPrecision(k=1), losses.TopKPrecision(k=1)], [level, level], labels, ids)
    tensor(0.7600)
    """
    remembered = list(memories)
    terms = []
    for number, (part, level) in enumerate(zip(criteria, levels, strict=True)):
        more = remembered[number].candidates(level, labels, ids) if remembered else {"image_ids": ids}
        terms.append(part(level, labels, **more))
    return torch.stack(terms).sum()
