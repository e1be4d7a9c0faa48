"""The default command beside single losses at their own defaults, on data sets that nothing was tuned on.

    python results/defaults.py FOLDER --weights resnet50_v1_imagenet.safetensors [--seeds 1] [--minutes 9]
        [--only products-two ...] [--also emoji ...] [--set model.options.strides=v1 ...]

FOLDER holds CUB_200_2011 and products; tables that take some of their images are written there: a long tail,
seven images of each class, two of each, products by category, two images of each product. --also names
further data sets in FOLDER. Each gets a folder in results/defaults, where it goes on when it is run again.
"""

import argparse
import csv
import io
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from firstpage import durable
from firstpage.compare import Table, run_cells
from firstpage.compare.rendering import write_pages
from firstpage.compare.summary import summarize
from firstpage.compare.tables import Row
from firstpage.data import read
from firstpage.models.device import resolve_device
from firstpage.training.defaults import default_recipe

HERE = Path(__file__).parent
METRICS = ("R@1", "P@5", "P@R", "MAP@R")
ROWS = {
    "Untrained": ["model.head=none", "schedule.epochs=0"],
    "The default": [],
    "Margin": ["loss.name=margin"],
    "Top-k precision": ["loss.name=topk"],
    "EPSHN": ["loss.name=epshn"],
    "Ranked list": ["loss.name=rll"],
    "Proxy-Anchor": ["loss.name=proxy-anchor"],
}
Images = list[tuple[str, str]]  # paths and classes


def classes_of(folder: Path, pattern: str) -> dict[str, list[str]]:
    """Return the images of each class, relative to the folder."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob(pattern)):
        found.setdefault(path.parent.name, []).append(path.relative_to(folder).as_posix())
    return found


def some_of(classes: dict[str, list[str]], count: int, draw: random.Random) -> Images:
    """Return so many images of each class."""
    return [
        (path, name) for name, paths in classes.items() for path in draw.sample(paths, min(count, len(paths)))
    ]


def derived(folder: Path) -> Iterator[tuple[str, Images]]:
    """Yield the name and the images of each data set that is made of CUB and products."""
    draw = random.Random(5)
    birds, products = (classes_of(folder, f"{name}/*/*.jpg") for name in ("CUB_200_2011/images", "products"))
    if birds:
        names = sorted(birds)
        draw.shuffle(names)
        sizes = [max(1, round(58 * (1 - place / len(names)) ** 3)) for place in range(len(names))]
        tail = [
            draw.sample(birds[name], min(size, len(birds[name])))
            for name, size in zip(names, sizes, strict=True)
        ]
        yield (
            "cub-long-tail",
            [(path, name) for name, paths in zip(names, tail, strict=True) for path in paths],
        )
        yield "cub-seven", some_of(birds, 7, draw)
        yield "cub-two", some_of(birds, 2, draw)
    if products:
        yield (
            "product-categories",
            [(path, name.rsplit("-", 1)[0]) for name, paths in products.items() for path in paths],
        )
        yield "products-two", some_of(products, 2, draw)


def write_tables(folder: Path) -> list[str]:
    """Write a csv table of each data set, and return their names."""
    names = []
    for name, images in derived(folder):
        lines = io.StringIO(newline="")
        csv.writer(lines).writerows([("path", "label"), *images])
        durable.write(folder / f"{name}.csv", lines.getvalue().encode())
        names.append(f"{name}.csv")
    return names


def main() -> None:
    """Train what is missing, and write the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="stop then")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--also", nargs="+", default=[], metavar="DATA")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="for all rows")
    parser.add_argument("--out", type=Path, default=HERE / "defaults")
    options = parser.parse_args()
    device, end = resolve_device(None), time.monotonic() + 60 * (options.minutes or 1e9)
    common = [f"model.weights={options.weights}", *options.set]
    complete = True
    for data in [*write_tables(options.folder), "products", *options.also]:
        name = Path(data).stem
        if (options.only and name not in options.only) or not (options.folder / data).exists():
            continue
        print(f"== {name}", flush=True)
        catalog = read(options.folder / data)
        recipes = {row: default_recipe(catalog, device, [*common, *own])[0] for row, own in ROWS.items()}
        table = Table(
            f"{name}: the default command and single losses at their own defaults",
            tuple(Row(row, recipe) for row, recipe in recipes.items()),
            METRICS,
            f"{len(catalog):,} images of {len(catalog.classes):,} classes, a fifth of them for the test.",
            ("fair",),
        )
        out, seeds, left = options.out / name, range(options.seeds), (end - time.monotonic()) / 60
        complete &= run_cells(table, catalog, out, seeds=seeds, protocols=["fair"], minutes=left)
        write_pages(out, table, summarize(table, catalog, out, seeds, ["fair"]))
    sys.exit(0 if complete else 3)


if __name__ == "__main__":
    main()
