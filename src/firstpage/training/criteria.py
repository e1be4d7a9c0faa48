"""The losses of a run, fitted to its model and its data."""

from __future__ import annotations

from torch import nn

from firstpage import losses
from firstpage.models.embedder import Embedder
from firstpage.training.recipe import Recipe

__all__ = ["make_criteria"]


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
        raise ValueError("loss.name: say which, such as loss.name='topk'; losses.names() lists all")
    if name == "proxy-nca":
        settings = {"classes": classes, "dim": model.dim // len(model.heads)} | settings
    for key, count in (("classes", classes), ("images", images)):
        if settings.get(key) is True:
            settings[key] = count
        elif key in settings and settings[key] < count:
            raise ValueError(
                f"loss.{key}={settings[key]}: the data has {count}: write loss.{key}=true to fit it"
            )
    return nn.ModuleList(losses.create(name, **settings) for _ in model.heads)
