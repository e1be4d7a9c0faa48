"""Recipes: every setting of a training run as data, and those that come with the package.

`recipe.py` has the class, `settings.py` the keys of each section with their defaults, and every `.toml` file
here is a recipe by its name. Nothing here imports torch.
"""

from collections.abc import Sequence
from pathlib import Path

from firstpage._spelling import suggest
from firstpage.recipes.recipe import Recipe

__all__ = ["Recipe", "baseline", "describe", "find", "names"]

_HERE = Path(__file__).parent


def names() -> list[str]:
    """Return the names of the recipes that come with the package.

    >>> "cub-topk" in names()
    True
    """
    return sorted(path.stem for path in _HERE.glob("*.toml"))


def describe() -> dict[str, str]:
    """Return a sentence about each of the recipes, the first comment of its file.

    >>> describe()["cub-topk"]
    'CUB-200-2011, ResNet-50, top-k precision loss: the first page of birds.'
    """
    files = {name: _HERE / f"{name}.toml" for name in names()}
    return {
        name: file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for name, file in files.items()
    }


def find(name: str | None) -> Recipe:
    """Return the recipe with that name or in that file; without one, the default recipe.

    >>> find("cub-topk").model.backbone
    'resnet50'
    >>> find("cub-tokp")
    Traceback (most recent call last):
    FileNotFoundError: 'cub-tokp': no such folder, table or recipe; did you mean 'cub-topk'? ...
    """
    if name is None:
        return Recipe()
    if name in names():
        return Recipe.read(_HERE / f"{name}.toml")
    if Path(name).is_file():
        return Recipe.read(name)
    raise FileNotFoundError(
        f"{name!r}: no such folder, table or recipe; {suggest(name, names())}the recipes are "
        f"{', '.join(names())}"
    )


def baseline(
    name: str | None = None,
    *,
    backbone: str | None = None,
    weights: str | None = None,
    changes: Sequence[str] = (),
) -> Recipe:
    """Return the recipe of an untrained network, whose features are the embedding, to compare runs with.

    A head would be random without training, so there is none.

    Args:
        name: The recipe it is based on, as in `find`.
        backbone: The network, instead of the recipe's.
        weights: Its pretrained weights, instead of the recipe's.
        changes: Further `section.key=value`.

    >>> recipe = baseline(backbone="vit_small_14", weights="imagenet")
    >>> recipe.schedule.epochs, recipe.model.backbone, recipe.model.head
    (0, 'vit_small_14', 'none')
    """
    given = {
        "model.backbone": backbone,
        "model.weights": weights,
        "model.head": "none",
        "model.learners": "[]",
    }
    fixed = [f"{key}={value}" for key, value in given.items() if value is not None]
    return find(name).changed([*fixed, "model.standardize=false", "schedule.epochs=0", *changes])
