"""Choosing triplets, beside the miners of pytorch-metric-learning."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from compared import OURS, PML, Case, Options, has
from compared.losses import CUBIC, inputs
from firstpage import Pairs, mining


def cases(options: Options) -> Iterator[Case]:
    """Every strategy at every size, from embeddings to the chosen images (theirs as lists of indices)."""
    if not has("pytorch_metric_learning"):
        return
    from pytorch_metric_learning import miners

    easy_hard = miners.BatchEasyHardMiner
    rows: dict[str, tuple[mining.Strategy, torch.nn.Module, str]] = {
        "easy-hard": (mining.product("easy", "hard"), easy_hard("easy", "hard"), ""),
        "easy-semihard": (mining.product("easy", "semihard"), easy_hard("easy", "semihard"), ""),
        "hard-hard": (mining.product("hard", "hard"), miners.BatchHardMiner(), ""),
        "multi-similarity": (mining.multi_similarity(0.1), miners.MultiSimilarityMiner(0.1), "pairs"),
        "distance-weighted": (
            mining.product("all", "distance_weighted"),
            miners.DistanceWeightedMiner(),
            "both draw at random; their weights underflow in high dimension",
        ),
        "semihard": (
            mining.product("all", "semihard"),
            miners.TripletMarginMiner(0.1, "semihard"),
            "they take every triplet within the margin, here the closest negative of each positive",
        ),
    }
    for name, (strategy, miner, note) in rows.items():
        for count in options.sizes:
            if options.wants("mining", name):
                yield _case(name, count, strategy, miner, note, options)


def _case(
    name: str, count: int, strategy: mining.Strategy, miner: torch.nn.Module, note: str, options: Options
) -> Case:
    embeddings, labels = inputs(count, options)
    embeddings = embeddings.detach()

    def ours() -> mining.Mined:
        return strategy(Pairs.of(embeddings, labels), None)

    def theirs() -> tuple[Tensor, ...]:
        chosen: tuple[Tensor, ...] = miner(embeddings, labels)
        return chosen

    def same() -> tuple[Tensor, Tensor]:
        if note == "pairs":
            (a, p), (b, n) = ours().pairs()
            found, expected = torch.cat([a * count + p, -b * count - n]), theirs()
            codes = torch.cat([expected[0] * count + expected[1], -expected[2] * count - expected[3]])
        else:
            a, p, n = ours().triplets()
            anchor, positive, *_, negative = theirs()
            found, codes = (a * count + p) * count + n, (anchor * count + positive) * count + negative
        return found.sort().values, codes.sort().values

    sides: dict[str, Callable[[], object]] = {OURS: ours}
    if name == "semihard" and count > CUBIC and options.device.type == "cpu":
        note = f"{note}; theirs takes minutes and gigabytes"
    else:
        sides[PML] = theirs
    differs = note not in ("", "pairs")
    return Case(name, f"N={count}", sides, None if differs else same, note)
