"""A recipe as TOML in which a comment explains every setting."""

import textwrap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import tomli_w

from firstpage._text import argument_descriptions, summary
from firstpage.recipes.recipe import Recipe

WIDTH = 110  # of a comment
_LOSS = "One that `firstpage list losses` names, or `package.module:Class` for one of your own."


def comment_toml(recipe: Recipe, loss: Mapping[str, tuple[str, object]] | None = None) -> str:
    """Return a recipe as TOML with all its settings, and what each of them means.

    Settings without a value, such as `model.weights`, are commented out and have an example.

    Args:
        recipe: The recipe.
        loss: The meaning and the default of each setting of its loss; see `losses.describe_settings`.

    >>> print(comment_toml(Recipe()).partition("pooling")[0])
    # Settings of an `Embedder`, and the `[model]` table of a recipe.
    [model]
    # One that `firstpage list backbones` names, `timm:NAME`, or `package.module:Class` for one of your own.
    backbone = "resnet50"
    # Further arguments of that backbone, such as `{"strides": "v1"}` for a ResNet.
    options = {}
    # A file of pretrained weights, or `imagenet`. Defaults to random weights.
    # weights = "imagenet"
    # `avg`, `max`, `avg+max`, `gem` or `cls`.
    """
    sections = []
    for section in fields(recipe):
        settings = getattr(recipe, section.name)
        lines = [f"[{section.name}]"]
        if is_dataclass(settings):
            lines = [*_comment(summary(type(settings))), *lines]
            meanings = argument_descriptions(type(settings))
            for item in fields(settings):
                value = getattr(settings, item.name)
                lines += _comment(meanings[item.name])
                lines += _setting(item.name, value, item.metadata.get("example"))
        else:
            known = {"name": (_LOSS, None), **(loss or {})}
            for key in dict.fromkeys([*settings, *known]):
                meaning, default = known.get(key, ("", None))
                unset = key not in settings and default is None
                lines += _comment(f"{key}: {meaning}" if unset else meaning)
                lines += _setting(key, settings.get(key), default)
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def _comment(text: str) -> list[str]:
    if text[:1].isascii():  # γ is not Γ
        text = text[:1].upper() + text[1:]
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _setting(key: str, value: object, example: object) -> list[str]:
    if value is not None:
        return [_entry(key, value)]
    return [] if example is None else [f"# {_entry(key, example)}"]


def _entry(key: str, value: object) -> str:
    """Return `key = value` in one line; tomli_w writes tables and arrays in several."""
    name = tomli_w.dumps({key: 0}).removesuffix(" = 0\n")
    return f"{name} = {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        entries = ", ".join(_entry(key, part) for key, part in value.items())
        return f"{{ {entries} }}" if entries else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").removesuffix("\n")
