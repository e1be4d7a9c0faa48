"""What ran: the facts of a run, and where several recipes differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from firstpage.recipes.recipe import Recipe
from firstpage.recipes.settings import ModelSettings
from firstpage.runs.record import Record

__all__ = ["called", "differences", "facts", "model_facts"]


def facts(record: Record) -> dict[str, str]:
    """What ran, on what and where, each in a few words. What a run folder does not say is left out.

    >>> facts(Record(Path("a"), Recipe(), {"torch": "2.6"}, []))["Model"]
    'resnet50, 512 dimensions, avg pooling'
    """
    recipe, about = record.recipe, record.about
    data, result = about.get("data") or {}, record.result
    model, settings = recipe.model, dict(recipe.loss)
    loss = str(settings.pop("name", "?"))
    if settings:
        loss += f" ({', '.join(f'{key} {_plain(value)}' for key, value in settings.items())})"
    found = {
        "Loss": loss,
        **model_facts(recipe.model),
        "Weights at the start": Path(model.weights).name if model.weights else "none",
        "Batch": f"{recipe.batch.size}, {recipe.batch.images_per_class} a class",
        "Optimizer": f"{recipe.optimizer.name}, rate {recipe.optimizer.lr:g}",
        "Epochs": str(recipe.schedule.epochs),
        "Schedule": recipe.schedule.kind,
        "Best epoch": result.get("epoch"),
        "Warnings": "; ".join(result.get("warnings") or []) or None,
        "Seed": recipe.train.seed,
        "Protocol": recipe.train.protocol,
        "Data": f"{called(data['name'], data.get('root', ''))}, {data['images']:,} images"
        if {"name", "images"} <= set(data)
        else None,
        "Data fingerprint": str(data["fingerprint"])[:16] if "fingerprint" in data else None,
        "Device": about.get("device"),
        "Time in training": _duration(result.get("seconds")),
        "Throughput": _throughput(result.get("images_per_second")),
        "firstpage": about.get("firstpage"),
        "torch": about.get("torch"),
        "Python": about.get("python"),
        "git": str(about["git"])[:12] if about.get("git") else None,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def called(kind: str, root: str | Path) -> str:
    """What a data set is called: by its kind, or a folder of one's own by its name.

    >>> called("cub", "/data/birds"), called("folder", "/data/birds")
    ('cub', 'birds')
    """
    return (kind == "folder" and Path(root).name) or kind


def model_facts(model: ModelSettings) -> dict[str, str]:
    """What a model is made of.

    >>> model_facts(ModelSettings(backbone="small", dim=64, stored=36, crop=32))["Input"]
    '32 of 36 pixels, squash'
    """
    dim = "" if model.head == "none" else f", {model.dim} dimensions"
    return {
        "Model": f"{model.backbone}{dim}, {model.pooling} pooling",
        "Head": model.head,
        "Input": f"{model.crop or 'the backbone’s own'} of {model.stored} pixels, {model.resize}",
    }


def differences(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """The settings that are not the same in all, by their full names; "–" where a recipe has none.

    >>> differences([Recipe(), Recipe().changed(["schedule.epochs=2"])])
    {'schedule.epochs': ['15', '2']}
    """
    tables = [_flat(asdict(recipe)) for recipe in recipes]
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = {name: [_plain(table.get(name)) for table in tables] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


def _flat(table: dict[str, Any], place: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{place}{key}.")
        else:
            found[f"{place}{key}"] = value
    return found


def _plain(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(part) for part in value)
    return str(value)


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _throughput(pace: float | None) -> str | None:
    return f"{pace:,.0f} images/s" if pace else None
