"""Losses by name, with the settings of the papers' tables."""

import inspect
from collections.abc import Callable, Mapping
from typing import cast

from torch import nn

from firstpage._plugins import import_object
from firstpage._spelling import suggest
from firstpage._text import argument_descriptions, summary
from firstpage._types import convert, hints_of
from firstpage.errors import UserError
from firstpage.losses.angular import Angular
from firstpage.losses.base import Loss, Reduction
from firstpage.losses.binomial_deviance import BinomialDeviance
from firstpage.losses.circle import Circle
from firstpage.losses.combined import Combined
from firstpage.losses.contrastive import Contrastive
from firstpage.losses.hierarchical_triplet import HierarchicalTriplet
from firstpage.losses.histogram import Histogram
from firstpage.losses.lifted_structure import LiftedStructure
from firstpage.losses.margin import Margin
from firstpage.losses.multi_similarity import MultiSimilarity
from firstpage.losses.nca import NCA
from firstpage.losses.npair import NPair
from firstpage.losses.pddm import PDDM
from firstpage.losses.proxy_anchor import ProxyAnchor
from firstpage.losses.proxy_nca import ProxyNCA
from firstpage.losses.ranked_list import RankedList
from firstpage.losses.recall_at_k import RecallAtK
from firstpage.losses.roadmap import Roadmap
from firstpage.losses.smooth_ap import SmoothAP
from firstpage.losses.soft_triple import SoftTriple
from firstpage.losses.spectral_clustering import SpectralClustering
from firstpage.losses.structured_clustering import StructuredClustering
from firstpage.losses.supervised_contrastive import SupervisedContrastive
from firstpage.losses.topk_precision import TopKPrecision
from firstpage.losses.triplet import Triplet


def _npair_angular(
    weight: float = 2.0, degrees: float = 45.0, l2: float = 0.02, reduction: Reduction = "mean"
) -> Combined:
    """N-pair plus `weight` times the angular loss; its authors take 2."""
    return Combined([NPair(l2), Angular(degrees)], [1.0, weight], reduction)


def _first_page(
    classes: int,
    dim: int,
    k: int | tuple[int, ...] = 1,
    margin: float = 0.1,
    weight: float = 10.0,
    alpha: float = 32.0,
    delta: float = 0.1,
    reduction: Reduction = "mean",
) -> Combined:
    """`weight` times the top-k precision loss by −log d, anchored by Proxy-Anchor."""
    parts = [TopKPrecision(k, margin, score="log"), ProxyAnchor(classes, dim, alpha, delta)]
    return Combined(parts, [weight, 1.0], reduction, names=["topk", "proxy-anchor"])


def _sum(parts: list[dict[str, object]], reduction: Reduction = "mean") -> Combined:
    """A weighted sum: each part is a table with the `name` of a loss, its `weight` (1) and its settings."""
    losses, weights, called = [], [], []
    for number, part in enumerate(parts):
        settings = dict(part)
        name, weight = settings.pop("name", None), settings.pop("weight", 1.0)
        place = f"loss.parts[{number}]"
        if not isinstance(name, str):
            raise UserError(f"{place}: name its loss, such as {{name = 'topk', weight = 10.0, k = 1}}")
        weights.append(convert(weight, float, f"{place}.weight"))
        losses.append(create(name, **settings))
        called.append(name if name not in called else f"{name} {number}")
    return Combined(losses, weights, reduction, names=called)


_ROWS: dict[str, tuple[Callable[..., nn.Module], dict[str, object]]] = {
    "topk": (TopKPrecision, {}),
    "margin": (Margin, {}),
    "triplet-uniform": (Triplet, {"negatives": "uniform"}),
    "triplet-hard": (Triplet, {"positives": "hard", "negatives": "hard"}),
    "triplet-semihard": (Triplet, {"negatives": "semihard"}),
    "triplet-distance": (Triplet, {"negatives": "distance_weighted"}),
    "contrastive": (Contrastive, {}),
    "ep": (NCA, {"positives": "easy", "negatives": "all"}),
    "ephn": (NCA, {"positives": "easy", "negatives": "hard"}),
    "epshn": (NCA, {"positives": "easy", "negatives": "semihard"}),
    "hp": (NCA, {"positives": "hard", "negatives": "all"}),
    "hphn": (NCA, {"positives": "hard", "negatives": "hard"}),
    "batch-all": (NCA, {"positives": "all", "negatives": "all"}),
    "rll": (RankedList, {}),
    "lifted": (LiftedStructure, {}),
    "npair": (NPair, {}),
    "angular": (Angular, {}),
    "npair-angular": (_npair_angular, {}),
    "proxy-nca": (ProxyNCA, {}),
    "histogram": (Histogram, {}),
    "binomial": (BinomialDeviance, {}),
    "struct-clust": (StructuredClustering, {}),
    "spectral-clust": (SpectralClustering, {}),
    "htl": (HierarchicalTriplet, {}),
    "pddm": (PDDM, {}),
    "proxy-anchor": (ProxyAnchor, {}),
    "multi-similarity": (MultiSimilarity, {}),
    "soft-triple": (SoftTriple, {}),
    "recall-at-k": (RecallAtK, {}),
    "smooth-ap": (SmoothAP, {}),
    "roadmap": (Roadmap, {}),
    "circle": (Circle, {}),
    "supcon": (SupervisedContrastive, {}),
    "first-page": (_first_page, {}),
}


def names() -> list[str]:
    """The names `create` knows: one for each row of the papers' tables, then the losses that came later.

    >>> names()[:4]
    ['topk', 'margin', 'triplet-uniform', 'triplet-hard']
    """
    return list(_ROWS)


def describe() -> dict[str, str]:
    """A sentence about each of the names.

    >>> describe()["triplet-hard"]
    "Triplet loss: a query's negative should be farther than its ... (positives hard, negatives hard)."
    """
    sentences = {}
    for name, (build, settings) in _ROWS.items():
        fixed = ", ".join(f"{key} {value}" for key, value in settings.items())
        sentences[name] = summary(build).rstrip(".") + (f" ({fixed})." if fixed else ".")
    return sentences


def describe_settings(name: object) -> dict[str, tuple[str, object]]:
    """What each setting of a loss means, and its value in the papers' tables; nothing for one of your own.

    >>> describe_settings("topk")["k"]
    ('the length of the first page, or several of them.', 5)
    """
    if name not in _ROWS:
        return {}
    build, settings = _ROWS[str(name)]
    known = inspect.signature(build).parameters
    values = {key: parameter.default for key, parameter in known.items()} | settings
    given = {"generator", "classes", "images", "dim"}  # by the training
    return {
        key: (text, None if values[key] is inspect.Parameter.empty else values[key])
        for key, text in argument_descriptions(build).items()
        if key in known and key not in given
    }


def create(name: str, **overrides: object) -> Loss:
    """The loss of that name with the papers' settings, changed by `overrides`.

    `sum` is a weighted sum of others: `parts` is a list of tables with a `name`, a `weight` and settings.
    A loss of your own is named by its module and class: `create("my_package.my_module:MyLoss", scale=2.0)`.
    It is a subclass of `Loss`, or any module that is called as `loss(embeddings, labels)`.

    >>> create("epshn", temperature=0.05).temperature
    0.05
    >>> create("firstpage.losses.nca:NCA", temperature=0.05).temperature
    0.05
    >>> create("sum", parts=[{"name": "topk", "weight": 10.0}, {"name": "supcon"}]).weights
    [10.0, 1.0]
    >>> create("epsnh")
    Traceback (most recent call last):
    firstpage.errors.UserError: loss 'epsnh': no such name; did you mean 'epshn'? firstpage list losses ...
    >>> create("epshn", temperature="warm")
    Traceback (most recent call last):
    firstpage.errors.UserError: loss 'epshn': temperature='warm': must be a number
    """
    build, settings = _find(name)
    overrides = check_settings(name, overrides)
    missing = [key for key in required_arguments(name) if key not in overrides]
    if missing:
        raise UserError(f"loss {name!r} needs {', '.join(missing)}: create({name!r}, {missing[0]}=...)")
    return cast(Loss, build(**(settings | overrides)))


def check_settings(name: str, overrides: Mapping[str, object]) -> dict[str, object]:
    """Settings of a loss as it takes them, after checking their names and types.

    >>> check_settings("topk", {"margin": 1})
    {'margin': 1.0}
    """
    build, _ = _find(name)
    known, hints = inspect.signature(build).parameters, hints_of(build)
    checked = {}
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    for key, value in overrides.items():
        if key not in known and not open_ended:
            raise UserError(
                f"loss {name!r}: no setting {key!r}; {suggest(key, known)}it takes {', '.join(known)}"
            )
        checked[key] = convert(value, hints.get(key, object), f"loss {name!r}: {key}")
    return checked


def required_arguments(name: str) -> list[str]:
    """The arguments that `create` needs for that loss.

    >>> required_arguments("proxy-nca")
    ['classes', 'dim']
    """
    build, settings = _find(name)
    known = inspect.signature(build).parameters.values()
    return [
        parameter.name
        for parameter in known
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name not in settings
    ]


def _find(name: str) -> tuple[Callable[..., nn.Module], dict[str, object]]:
    """What builds a loss, and the settings of its row."""
    if name == "sum":
        return _sum, {}
    if name in _ROWS:
        return _ROWS[name]
    if not isinstance(name, str) or ":" not in name:
        raise UserError(f"loss {name!r}: no such name; {suggest(name, _ROWS)}firstpage list losses names all")
    kind = import_object(name, "loss.name")
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise UserError(f"loss.name={name!r}: is not a class of losses: subclass firstpage.losses.Loss")
    return kind, {}
