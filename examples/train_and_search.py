"""Train by a recipe, then find the nearest neighbors of one image.

python examples/train_and_search.py                             # embedded glyphs, ten seconds of training
python examples/train_and_search.py --data photos --recipe cub-topk --out runs/photos --query bird.jpg
"""

import argparse
import tempfile

from firstpage import Recipe, data, recipes
from firstpage.training import fit

QUICK = {
    "model": {"backbone": "small", "dim": 64, "stored": 36, "crop": 32, "standardize": True},
    "loss": {"name": "topk", "k": 5, "margin": 0.7},
    "batch": {"size": 96, "images_per_class": 6},
    "augment": {"crop": "random", "flip": 0.0},
    "optimizer": {"lr": 1e-2, "head": 1.0},
    "schedule": {"epochs": 12, "kind": "cosine"},
    "train": {"evaluate_every": 12},
}


def main() -> None:
    """Train, embed the test images and print the first page of one query."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="glyphs", help="a folder with one folder per class, or a table")
    parser.add_argument("--recipe", help="name of a recipe or a TOML file; default: a quick one")
    parser.add_argument("--out", help="run folder; default: a temporary one")
    parser.add_argument("--query", help="an image file; default: the first test image")
    args = parser.parse_args()

    catalog = data.read(args.data, **({"images": 8} if args.data == "glyphs" else {}))
    catalog = catalog if "test" in catalog.splits else catalog.split_classes(0.2, seed=0)
    recipe = recipes.find(args.recipe) if args.recipe else Recipe.of(QUICK)
    with tempfile.TemporaryDirectory() as temporary:
        result = fit(recipe, catalog, args.out or temporary, progress=False)
    print(f"P@1 {result.history[0]['P@1']:.1f} before training, {result.best['P@1']:.1f} after")

    # The model embeds files, Pillow images, arrays or a pixel store into unit vectors.
    test = catalog.split("test")
    gallery = result.model.embed([test.path(row) for row in range(len(test))], progress=False)
    query = args.query or test.path(0)
    similarity = gallery @ result.model.embed([query], progress=False)[0]
    if args.query is None:
        similarity[0] = -1.0  # itself
    similarity, rows = similarity.sort(descending=True)
    print(f"nearest to {query}:")
    for score, row in zip(similarity[:5].tolist(), rows[:5].tolist(), strict=True):
        print(f"  {score:.3f}  {test.classes[test.labels[row]]:30}  {test.paths[row]}")


if __name__ == "__main__":
    main()
