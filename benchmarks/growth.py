"""How the cost of each part grows as what it works on becomes ten and a hundred times as large.

    python benchmarks/growth.py [--only NAME ...] [--out FOLDER]

Each part is called several times at each size, the sizes by turns, and the median of the processor's time
counts, so that a busy neighbor disturbs little. The exponent e says that n times as much costs n^e: 1 where
the mathematics is linear, 2 for a loss over all pairs of a batch. What leaves the processor's caches costs a
few times more for each number, so exponents may be up to 0.5 higher; the exit status is 1 if the last step of
a part is beyond that. Written are growth.json, growth.svg and growth.md.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from firstpage import losses
from firstpage.data import Catalog
from firstpage.data.sampler import GroupSampler
from firstpage.data.training_plan import plan_training
from firstpage.evaluation import cluster, evaluate
from firstpage.figures.style import make_style, save
from firstpage.models import Embedder
from firstpage.recipes import Recipe
from firstpage.search import Index

HERE = Path(__file__).parent
SLACK = 0.5  # the last step is to ten times as much: a factor of three
Make = Callable[[int, Path], Callable[[], object]]


@dataclass(frozen=True)
class Part:
    """What is measured: at which sizes, of what, and the exponent that it should have at most."""

    unit: str
    sizes: tuple[int, int, int]
    exponent: float
    make: Make


def vectors(count: int, dim: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors around a center for each class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    centers = torch.randn(classes, dim, generator=generator)
    points = centers[labels] + 2 * torch.randn(count, dim, generator=generator)
    return torch.nn.functional.normalize(points), labels


def catalog(count: int, per_class: int) -> Catalog:
    """Images that nobody opens."""
    paths = [f"{number // per_class}/{number}.jpg" for number in range(count)]
    names = [str(number) for number in range(-(-count // per_class))]
    return Catalog("made", Path("/made"), paths, np.arange(count) // per_class, names, {})


def loss(name: str, *, proxies: bool = False) -> Make:
    """Forward and backward of a loss, in a batch of that size, or among that many classes."""

    def make(size: int, folder: Path) -> Callable[[], object]:
        images, classes = (128, size) if proxies else (size, max(2, size // 4))
        points, labels = vectors(images, 128, min(images // 4, classes))
        known = {"classes": classes, "dim": 128}
        needed = {key: known[key] for key in losses.required_arguments(name)}
        criterion = losses.create(name, **needed)

        def call() -> None:
            batch = points.clone().requires_grad_()
            criterion(batch, labels).backward()

        return call

    return make


def sample(size: int, folder: Path) -> Callable[[], object]:
    """All batches of an epoch."""
    sampler = GroupSampler(np.arange(size) // 10, 128, 4)
    return lambda: sum(1 for _ in sampler)


def plan(size: int, folder: Path) -> Callable[[], object]:
    """What a training does before its first batch, but for the pixels."""
    images, recipe = catalog(size, 10), Recipe()
    return lambda: plan_training(recipe, images, np.ones(size, bool))


def retrieve(size: int, folder: Path) -> Callable[[], object]:
    """Every metric of 256 queries in a gallery of that size."""
    points, labels = vectors(size, 128, size // 10)
    return lambda: evaluate(points[:256], labels[:256], points, labels)


def clusters(size: int, folder: Path) -> Callable[[], object]:
    """Five iterations of k-means to 50 clusters, and NMI."""
    points, labels = vectors(size, 64, 50)
    return lambda: cluster(points, labels, iterations=5)


def built(size: int, folder: Path) -> Index:
    """An index of vectors."""
    points, _ = vectors(size, 64, size // 10)
    model = Embedder.create(backbone="small", dim=64, stored=32, crop=32)
    target = folder / f"index-{size}"
    if target.exists():
        return Index.open(target)
    return Index.build(
        target, model, catalog(size, 10), vectors=points.numpy(), engine="exact", progress=False
    )


def build(size: int, folder: Path) -> Callable[[], object]:
    """Build an index of vectors that are there."""
    numbers = iter(range(100))
    return lambda: built(size, folder / str(next(numbers)))


def search(size: int, folder: Path) -> Callable[[], object]:
    """Search an index for 16 queries."""
    index, (queries, _) = built(size, folder), vectors(16, 64, 16)
    return lambda: index.search(queries)


PARTS = {
    **{
        name: Part("images in a batch", (64, 640, 6400), 2.0, loss(name))
        for name in ("topk", "margin", "epshn", "rll", "multi-similarity")
    },
    **{
        name: Part("classes, 128 images", (1_000, 10_000, 100_000), 1.0, loss(name, proxies=True))
        for name in ("proxy-anchor", "proxy-nca")
    },
    "sampler": Part("images, ten a class, an epoch", (10_000, 100_000, 1_000_000), 1.0, sample),
    "plan": Part("images, ten a class", (10_000, 100_000, 1_000_000), 1.0, plan),
    "evaluation": Part("images in the gallery, 256 queries", (1_000, 10_000, 100_000), 1.0, retrieve),
    "clustering": Part("images, 50 clusters", (1_000, 10_000, 100_000), 1.0, clusters),
    "index build": Part("vectors", (1_000, 10_000, 100_000), 1.0, build),
    "index search": Part("vectors, 16 queries", (1_000, 10_000, 100_000), 1.0, search),
}


def measure(part: Part, seconds: float = 6.0) -> list[float]:
    """The median of the processor's seconds at each size."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = [part.make(size, Path(name)) for size in part.sizes]
        calls[0]()  # the first call loads and starts things
        times: list[list[float]] = [[] for _ in calls]
        begin = time.perf_counter()
        while len(times[0]) < 3 or (len(times[0]) < 21 and time.perf_counter() - begin < seconds):
            for call, taken in zip(calls, times, strict=True):
                start = time.process_time()
                call()
                taken.append(time.process_time() - start)
    return [statistics.median(taken) for taken in times]


def exponents(part: Part, seconds: list[float]) -> list[float]:
    """Of each step from one size to the next."""
    pairs = zip(part.sizes, part.sizes[1:], seconds, seconds[1:], strict=False)
    return [math.log(after / before) / math.log(large / small) for small, large, before, after in pairs]


def draw(found: dict[str, list[float]], path: Path) -> None:
    """Time against size, both as multiples of the smallest: parts that are quadratic, and linear ones."""
    style = make_style()
    figure, panels = style.panels(1, 2, width=16)
    for axes, exponent, title in zip(
        panels, (2.0, 1.0), ("should be quadratic", "should be linear"), strict=True
    ):
        names = [name for name in found if PARTS[name].exponent == exponent]
        for number, name in enumerate(names):
            sizes = [size / PARTS[name].sizes[0] for size in PARTS[name].sizes]
            axes.plot(
                sizes, [value / found[name][0] for value in found[name]], label=name, **style.curve(number)
            )
        axes.plot((1, 100), (1, 100**exponent), color=style.foreground, linewidth=0.6, linestyle=":")
        axes.set(xscale="log", yscale="log")
        style.label(axes, "times as much", "times as long", title)
        if names:
            style.legend(axes)
    save(figure, path)


def main() -> int:
    """Measure, write the figures, and say by the exit status whether anything grows too fast."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    lines = ["| part | grows with | seconds at the sizes | exponents | should be |", "|---|---|---|---|---|"]
    found, failed = {}, 0
    for name in options.only:
        part = PARTS[name]
        found[name] = seconds = measure(part)
        steps = exponents(part, seconds)
        late = steps[-1] > part.exponent + SLACK
        failed += late
        shown = ", ".join(f"{size:,}: {value:.3g}" for size, value in zip(part.sizes, seconds, strict=True))
        grown = ", ".join(f"{step:.2f}" for step in steps)
        grown = f"**{grown}**" if late else grown
        lines.append(f"| {name} | {part.unit} | {shown} | {grown} | {part.exponent:g} |")
        print(lines[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.json").write_text(json.dumps(found, indent=1))
    (options.out / "growth.md").write_text("\n".join(["# How costs grow", "", *lines, ""]))
    draw(found, options.out / "growth.svg")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
