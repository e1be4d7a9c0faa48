"""Facts about a run: its recipe, data, environment and cost; and how several recipes differ."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from firstpage.recipes.recipe import Recipe
from firstpage.recipes.settings import ModelSettings
from firstpage.runs.mark_ranks import MarkRanks
from firstpage.runs.record import Record


def run_facts(record: Record) -> dict[str, str]:
    """Describe a run by short facts; those that its folder does not record are omitted.

    >>> run_facts(Record(Path("a"), Recipe(), {"torch": "2.6"}, []))["Model"]
    'resnet50, 512 dimensions, avg pooling'
    """
    recipe, about = record.recipe, record.about
    data, result = about.get("data") or {}, record.result
    model, settings = recipe.model, dict(recipe.loss)
    loss = str(settings.pop("name", "?"))
    if settings:
        loss += f" ({', '.join(f'{key} {_format_value(value)}' for key, value in settings.items())})"
    dataset = dataset_name(data.get("name", ""), data.get("root", ""), data.get("file", ""))
    marks = MarkRanks.read(record.folder)
    known = {
        "Loss": loss,
        **model_facts(recipe.model),
        "Weights at the start": Path(model.weights).name if model.weights else "none",
        "Batch": f"{recipe.batch.images}, {recipe.batch.images_per_class} per class",
        "Optimizer": f"{recipe.optimizer.name}, rate {recipe.optimizer.lr:g}",
        "Epochs": str(recipe.schedule.epochs),
        "Schedule": recipe.schedule.kind,
        "Best epoch": result.get("epoch"),
        "Warnings": "; ".join(result.get("warnings") or []) or None,
        "Seed": recipe.train.seed,
        "Protocol": recipe.train.protocol,
        "Data": f"{dataset}, {data['images']:,} images" if {"name", "images"} <= set(data) else None,
        "Marks": "" if marks is None else marks.text(),
        "Data fingerprint": str(data["fingerprint"])[:16] if "fingerprint" in data else None,
        "Device": about.get("device"),
        "Time in training": _format_seconds(result.get("seconds")),
        "Throughput": f"{result['images_per_second']:,.0f} images/s"
        if result.get("images_per_second")
        else None,
        "firstpage": about.get("firstpage"),
        "torch": about.get("torch"),
        "Python": about.get("python"),
        "git": str(about["git"])[:12] if about.get("git") else None,
    }
    return {name: str(value) for name, value in known.items() if value not in (None, "")}


def dataset_name(kind: str, root: str | Path, file: str = "") -> str:
    """Return the name of a dataset: that of its table or of its folder of images, or else its kind.

    >>> dataset_name("cub", "/data/birds"), dataset_name("folder", "/data/birds")
    ('cub', 'birds')
    >>> dataset_name("csv", "/data", "birds.csv")
    'birds.csv'
    """
    return file or (kind == "folder" and Path(root).name) or kind


def model_facts(model: ModelSettings) -> dict[str, str]:
    """Describe a model by short facts.

    >>> model_facts(ModelSettings(backbone="small", dim=64, stored=36, crop=32))["Input"]
    '32 of 36 pixels, shorter'
    """
    dim = "" if model.head == "none" else f", {model.dim} dimensions"
    return {
        "Model": f"{model.backbone}{dim}, {model.pooling} pooling",
        "Head": model.head,
        "Input": f"{model.crop or 'the backbone’s own'} of {model.stored} pixels, {model.resize}",
    }


def recipe_differences(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    """Return the settings that differ between recipes, by full name; "–" for a recipe without the setting.

    >>> recipe_differences([Recipe(), Recipe().changed(["schedule.epochs=2"])])
    {'schedule.epochs': ['15', '2']}
    """
    tables = [_flatten(asdict(recipe)) for recipe in recipes]
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = {name: [_format_value(table.get(name)) for table in tables] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _format_value(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(_format_value(part) for part in value)
    return str(value)


def _format_seconds(seconds: float | None) -> str | None:
    if seconds is None or not math.isfinite(seconds):
        return None
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
