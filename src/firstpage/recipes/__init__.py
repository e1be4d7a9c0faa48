"""Recipes that come with the package: one TOML a row of a paper's table, and the demonstration's."""

from __future__ import annotations

from pathlib import Path

from firstpage._spelling import meant
from firstpage.training.recipe import Recipe

__all__ = ["find", "names"]

_HERE = Path(__file__).parent


def names() -> list[str]:
    """The recipes that come with the package.

    >>> "cub-topk" in names()
    True
    """
    return sorted(path.stem for path in _HERE.glob("*.toml"))


def find(name: str | None) -> Recipe:
    """The recipe of a file or of that name; the default one if there is none.

    >>> find("cub-topk").model.backbone
    'resnet50'
    >>> find("cub-tokp")
    Traceback (most recent call last):
    FileNotFoundError: recipe 'cub-tokp': no such file or name; did you mean 'cub-topk'? ...
    """
    if name is None:
        return Recipe()
    if name in names():
        return Recipe.read(_HERE / f"{name}.toml")
    if Path(name).is_file():
        return Recipe.read(name)
    raise FileNotFoundError(
        f"recipe {name!r}: no such file or name; {meant(name, names())}the names are {', '.join(names())}"
    )
