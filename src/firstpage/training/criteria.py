"""The losses of a run, fitted to its model and its data."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from firstpage import losses
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.recipes.settings import EnsembleSettings

GIVEN = "given"  # the key of a recipe's [loss] that describes a loss object passed to `fit`


def make_criteria(
    settings: Mapping[str, Any],
    model: Embedder,
    classes: int,
    images: int,
    loss: nn.Module | None = None,
    ensemble: EnsembleSettings | None = None,
) -> losses.Ensemble:
    """Create the loss of each level of a model, and the ensemble that they are.

    A loss that needs to know the number of classes, of images or of dimensions is told: arguments of its
    class named `classes`, `images` and `dim` are filled in where they are required or set to true.

    Args:
        settings: The `[loss]` section of a recipe: `name`, and arguments of the loss.
        model: The model to train.
        classes: Number of training classes.
        images: Number of images in the catalog.
        loss: A loss object to use instead; each level gets a copy of its own.
        ensemble: The `[ensemble]` section of a recipe.

    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> make_criteria({"name": "topk", "k": 1}, model, classes=10, images=100)[0]
    TopKPrecision(reduction='mean', k=1, margin=0.1, decorrelation=0.0, score='cosine', whole=False)
    """
    chosen = EnsembleSettings() if ensemble is None else ensemble
    if loss is not None:
        parts: list[nn.Module] = [copy.deepcopy(loss) for _ in model.level_dims]
    else:
        parts = [_make_loss(settings, classes, images, dim) for dim in model.level_dims]
    diversity = losses.create_diversity(chosen.diversity, model.level_dims, chosen.margin)
    criteria = losses.Ensemble(parts, chosen.rule, chosen.shares, diversity, chosen.weight)  # type: ignore[arg-type]
    _share_similarity(criteria, model)
    return criteria


def _make_loss(settings: Mapping[str, Any], classes: int, images: int, dim: int) -> nn.Module:
    """Create a loss by its settings, for embeddings of that many dimensions."""
    arguments = dict(settings)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise UserError("loss.name: say which, such as loss.name='topk'; firstpage list losses names all")
    if GIVEN in arguments:
        raise UserError(
            f"loss.{GIVEN}={arguments[GIVEN]!r}: this run used a loss object: pass it again, as fit(loss=...)"
        )
    if arguments.get("reduction") == "none":
        raise UserError("loss.reduction='none': training needs one number: choose mean or sum")
    sizes = {"classes": classes, "images": images, "dim": dim}
    parts = arguments.get("parts")
    if name == "sum" and isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
        arguments["parts"] = [
            part | _sizes(part["name"], part, sizes, f"loss.parts[{number}].")
            if isinstance(part.get("name"), str)
            else part  # which `create` refuses
            for number, part in enumerate(parts)
        ]
    arguments |= _sizes(name, arguments, sizes, "loss.")
    return losses.create(name, **arguments)


def _share_similarity(criteria: losses.Ensemble, model: Embedder) -> None:
    """Make what a loss learns of pairs a part of the model, if that shall keep it."""
    if model.pair_similarity is None:
        return
    learning = [part for part in criteria.modules() if isinstance(part, losses.PDDM)]
    if len(learning) != 1 or len(criteria.losses) != 1:
        raise UserError(
            "model.rerank=true: needs the loss pddm, and one head: use loss.name='pddm', or leave it out"
        )
    learning[0].similarity = model.pair_similarity


def _sizes(name: Any, given: Mapping[str, Any], sizes: Mapping[str, int], prefix: str) -> dict[str, int]:  # noqa: ANN401
    """Return the sizes that a loss needs: arguments that are required, or set to true."""
    required = losses.required_arguments(name)
    found = {}
    for key, count in sizes.items():
        value = given.get(key)
        if value is True or (value is None and key in required):
            found[key] = count
        elif key != "dim" and isinstance(value, int) and value < count:
            raise UserError(
                f"{prefix}{key}={value}: the data has {count}: use {prefix}{key}=true to fit the data"
            )
    return found


def describe_loss(loss: nn.Module) -> dict[str, Any]:
    """Return what a recipe says about a loss object that was passed to `fit`: its class and plain attributes.

    >>> describe_loss(losses.TopKPrecision(k=3))["name"]
    'firstpage.losses.topk_precision:TopKPrecision'
    """
    kind = type(loss)
    settings = {
        f"{name}.{key}".lstrip("."): value
        for name, module in loss.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, int | float | str) and key != "training" and not key.startswith("_")
    }
    return {"name": f"{kind.__module__}:{kind.__qualname__}", GIVEN: f"{kind.__qualname__}({settings})"}
