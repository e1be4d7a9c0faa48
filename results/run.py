"""Train what is missing of the tables in this folder, one after another, and write their pages.

    python results/run.py --cub CUB_200_2011 --products products --weights resnet50_v1_imagenet.safetensors
                          [--vit vit_small_14_dinov2_focus.safetensors] [--minutes 9] [--only cub/methods ...]

All tables are trained in one process, which compiles each network once. It may be stopped at any time, by
--minutes or otherwise, and goes on from there when it is run again; the exit code is 3 until all is done.
Name the weights as here, from the folder they are in: their name is a part of the recipe by which a finished
training is known.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import typer

from firstpage.compare.commands import compare_methods

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Job:
    """A table, and where its results are."""

    folder: str
    table: str  # its name, or "" for the file table.toml in the folder
    seeds: str = "1"
    protocol: str = "paper"
    data: str = "cub"
    weights: str = "weights"


JOBS = (
    Job("cub/methods", "cub-methods", seeds="3"),
    Job("products/losses", "products", seeds="3", protocol="fair", data="products"),
    Job("cub/group-sizes", "easy-positive-figure-4-cub"),
    Job("cub/dim-64-search", ""),
    Job("cub/topk-settings", "cub-topk-settings"),
    Job("cub/ranked-list", "ranked-list-3-cub"),
    Job("cub/temperature", "cub-temperature"),
    Job("cub/dim-64", ""),
    Job("cub/vit", "cub-vit", weights="vit"),
    Job("cub/easy-positive", "easy-positive-1-cub"),
    Job("cub/objective", "cub-objective", seeds="6"),
    Job("cub/objective-fair", "cub-objective", seeds="3", protocol="fair"),
    Job("cub/systems", "cub-systems", seeds="3"),
    Job("cub/methods-fair", "cub-methods", protocol="fair"),
    Job("cub/systems-fair", "cub-systems", protocol="fair"),
    Job("cub/further", "cub-further"),
)


def main() -> None:
    """Run the jobs for which there are data, weights and time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("cub", "products", "weights", "vit"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--minutes", type=float, help="stop then")
    parser.add_argument("--only", nargs="+", default=[], metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    complete = True
    for job in JOBS:
        data, weights = getattr(options, job.data), getattr(options, job.weights)
        if options.only and job.folder not in options.only:
            continue
        left = None if end is None else (end - time.monotonic()) / 60
        skipped = ""
        if data is None or weights is None:
            skipped = f": needs --{job.data} and --{job.weights}"
        elif left is not None and left <= 0:
            skipped = ": no time left"
        print(f"== {job.folder}{skipped}", flush=True)
        if skipped:
            complete = False
            continue
        try:
            compare_methods(
                job.table or str(HERE / job.folder / "table.toml"),
                data,
                options.out / job.folder,
                job.seeds,
                [job.protocol],
                minutes=left,
                changes=[f"model.weights={weights}", "train.compile=true"],
            )
        except typer.Exit:
            complete = False
    sys.exit(0 if complete else 3)


if __name__ == "__main__":
    main()
