"""Train some methods of the table cub-methods, embed CUB-200-2011 with them, and draw the papers' figures.

    python results/figures.py --cub CUB_200_2011 --weights resnet50_v1_imagenet.safetensors --work FOLDER
                              [--set train.compile=true]

Runs and embeddings are kept in --work: what is there is not made again, and a training that was cut is
resumed. The map of the embeddings needs openTSNE, and is left out without it.
"""

import argparse
from pathlib import Path

from PIL import Image

from firstpage.compare.cells import Cell
from firstpage.compare.tables import Row, find
from firstpage.data import Catalog, read
from firstpage.errors import UserError
from firstpage.figures.drawing import draw
from firstpage.runs.embedding_file import embed_to_file
from firstpage.training import fit

HERE = Path(__file__).parent
SAMPLED = (  # triplets
    "Triplet, uniform",
    "Triplet, semi-hard",
    "Triplet, distance weighted",
    "Top-k precision",
    "Margin, one β",
    "EPSHN",
)
ROWS = ("Untrained", *SAMPLED, "Ranked list", "First page")
SHOWN = "First page"  # where a figure is of one method
THEORY = ("sphere-density", "gradient-variance", "sampled-negatives", "loss-shapes")
OF_ALL = (
    "precision-recall.svg",
    "roc.svg",
    "class-similarity.svg",
    "train-similarity.svg",
    "nearest-classes.png",
)
OF_ONE = ("retrieved-lists", "embedding-map")


def main() -> None:
    """Train, embed and draw what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cub", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "images" / "cub")
    options = parser.parse_args()
    catalog = read(options.cub)
    table = find("cub-methods").changed([f"model.weights={options.weights}", *options.changes])
    rows = [row for row in table.rows if row.name in options.rows]
    for row in rows:
        _embed(row, catalog, options.work)
    _draw(rows, options.work, options.cub, options.out)


def _embed(row: Row, catalog: Catalog, work: Path) -> None:
    """Train a method, and write the embeddings of all images."""
    target, run = _file(row, work), work / "runs" / row.name
    if not target.exists():
        fit(Cell(row, 0, "paper").recipe, catalog, run)
        print(embed_to_file(run, catalog, target))


def _file(row: Row, work: Path) -> Path:
    return work / f"{row.name}.npz"  # figures show the name


def _draw(rows: list[Row], work: Path, cub: str, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    runs = {row.name: work / "runs" / row.name for row in rows if row.recipe.schedule.epochs}
    sampled = [run for name, run in runs.items() if name in SAMPLED]
    files = {row.name: _file(row, work) for row in rows}
    for name in THEORY:
        print(draw(name, [], out / f"{name}.svg"))
    print(draw("training", list(runs.values()), out / "training.svg"))
    print(draw("training-triplets", sampled, out / "training-triplets.svg"))
    for name in OF_ALL:
        print(draw(Path(name).stem, list(files.values()), out / name, data=cub))
    for name in OF_ONE if SHOWN in files else ():
        try:
            print(draw(name, [files[SHOWN]], work / f"{name}.png", data=cub))
        except UserError as error:  # openTSNE is missing
            print(error)
        else:
            _compress(work / f"{name}.png", out / f"{name}.jpg")


def _compress(photographs: Path, target: Path) -> None:
    """Write a figure of photographs a tenth as large."""
    with Image.open(photographs) as image:
        image.thumbnail((1200, 1200))
        image.convert("RGB").save(target, quality=85)


if __name__ == "__main__":
    main()
