"""The rows of the papers' tables by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from numbers import Integral, Real

from torch import Generator

from firstpage._spelling import suggest
from firstpage.errors import UserError
from firstpage.losses.angular import Angular
from firstpage.losses.base import Loss, Reduction
from firstpage.losses.binomial_deviance import BinomialDeviance
from firstpage.losses.combined import Combined
from firstpage.losses.contrastive import Contrastive
from firstpage.losses.histogram import Histogram
from firstpage.losses.lifted_structure import LiftedStructure
from firstpage.losses.margin import Margin
from firstpage.losses.nca import NCA
from firstpage.losses.npair import NPair
from firstpage.losses.proxy_nca import ProxyNCA
from firstpage.losses.ranked_list import RankedList
from firstpage.losses.spectral_clustering import SpectralClustering
from firstpage.losses.structured_clustering import StructuredClustering
from firstpage.losses.topk_precision import TopKPrecision
from firstpage.losses.triplet import Triplet

__all__ = ["create", "names"]


def _npair_angular(
    weight: float = 2.0, degrees: float = 45.0, l2: float = 0.02, reduction: Reduction = "mean"
) -> Combined:
    """N-pair plus `weight` times the angular loss; its authors take 2."""
    return Combined([NPair(l2), Angular(degrees)], [1.0, weight], reduction)


_ROWS: dict[str, tuple[Callable[..., Loss], dict[str, object]]] = {
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
}

_KINDS: dict[str, tuple[type, str]] = {
    "float": (Real, "a number"),
    "int": (Integral, "a whole number"),
    "bool": (bool, "true or false"),
    "Generator": (Generator, "a torch.Generator"),
}


def names() -> list[str]:
    """The names `create` knows: one for each row of the papers' tables.

    >>> names()[:4]
    ['topk', 'margin', 'triplet-uniform', 'triplet-hard']
    """
    return list(_ROWS)


def create(name: str, **overrides: object) -> Loss:
    """The loss of that name with the papers' settings, changed by `overrides`.

    >>> create("epshn", temperature=0.05).temperature
    0.05
    >>> create("epsnh")
    Traceback (most recent call last):
    firstpage.errors.UserError: loss 'epsnh': no such name; did you mean 'epshn'? losses.names() lists all
    >>> create("epshn", temperature="warm")
    Traceback (most recent call last):
    firstpage.errors.UserError: loss 'epshn': temperature='warm': must be a number
    """
    if name not in _ROWS:
        raise UserError(f"loss {name!r}: no such name; {suggest(name, _ROWS)}losses.names() lists all")
    build, settings = _ROWS[name]
    known = inspect.signature(build).parameters
    for key, value in overrides.items():
        if key not in known:
            raise UserError(
                f"loss {name!r}: no setting {key!r}; {suggest(key, known)}it takes {', '.join(known)}"
            )
        needed = _needed(value, known[key].annotation)
        if needed:
            raise UserError(f"loss {name!r}: {key}={value!r}: must be {needed}")
    given = settings | overrides
    missing = [key for key, value in known.items() if value.default is value.empty and key not in given]
    if missing:
        raise UserError(f"loss {name!r} needs {', '.join(missing)}: create({name!r}, {missing[0]}=...)")
    return build(**given)


def _needed(value: object, annotation: str) -> str | None:
    """What a setting must be where it is not. Names and strategies are checked by those who know them all."""
    first, *others = annotation.split(" | ")
    kind, words = _KINDS.get(first, (object, ""))
    if value is None and "None" in others:
        return None
    is_kind = isinstance(value, kind) and (kind in (bool, object) or not isinstance(value, bool))
    return None if is_kind else words
