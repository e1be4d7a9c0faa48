"""Whether the top-k precision loss holds by itself, at its defaults, beside its peers.

For each dataset, from random weights or from pretrained ones (`--weights`), with 2, 4, 8 and 16 images of
each class in a batch, `topk` is trained beside `rll`, `margin` and `epshn`, all at their own defaults and at
the same budget. It must never be reported as collapsed, and must end within two points of P@1 of the best of
the three. `topk-cosine` is the paper's own score, to show what happens without the cure.

    python benchmarks/collapse.py [--data glyphs PRODUCTS CUB …] [--weights resnet50.safetensors]
                                  [--images-per-class 2 4 8 16] [--out FILE.json]

The exit status is 1 if it fails. A killed run goes on where it stopped if it has an `--out` file.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path

import torch

from firstpage.data import read
from firstpage.models.device import resolve_device
from firstpage.training import fit
from firstpage.training.defaults import default_recipe

PEERS = ("rll", "margin", "epshn")
LOSSES = {
    "topk": ["loss.name=topk"],
    "topk-cosine": ["loss.name=topk", "loss.k=5", "loss.margin=0.1", "loss.score=cosine"],
    **{name: [f"loss.name={name}"] for name in PEERS},
}
GLYPHS = ["model.stored=36", "model.crop=32", "augment.crop=random", "augment.flip=0.0", "optimizer.lr=1e-2"]
LIMIT = 2.0  # points of P@1 behind the best peer


def settings(data: str, weights: str | None, images_per_class: int, loss: str) -> list[str]:
    """What differs from the defaults."""
    network = ["model.backbone=small"] if weights is None else [f"model.weights={weights}"]
    if weights is not None:
        network += ["model.options.strides=v1", "schedule.head_epochs=0"]  # the whole network, on a CPU, too
    if data == "glyphs":
        network += [change for change in GLYPHS if weights is None or not change.startswith("model")]
    protocol = ["train.protocol=paper", "train.evaluate_untrained=true"]
    return [
        *network,
        *LOSSES[loss],
        f"batch.images_per_class={images_per_class}",
        "batch.size=128",
        *protocol,
    ]


def main() -> int:
    """Train all of them, print the table, and say by the exit status whether `topk` held."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", nargs="+", default=["glyphs"])
    parser.add_argument("--weights", help="pretrained weights of a ResNet-50 v1; without, random ones")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--images-per-class", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--set", nargs="*", default=[], help="further settings of all runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    done = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    device, failed = resolve_device(None), 0
    start = "random" if options.weights is None else "given"
    print(f"{'data':12} {'weights':8} {'images':>6}  " + "".join(f"{name:>12}" for name in options.losses))
    for data in options.data:
        catalog = read(data)
        for count in options.images_per_class:
            cells = {}
            for loss in options.losses:
                key = f"{catalog.name} {start} {count} {loss}"
                if key not in done:
                    changes = [*settings(data, options.weights, count, loss), *options.set]
                    recipe, _ = default_recipe(catalog, device, changes)
                    torch.manual_seed(0)
                    result = fit(recipe, catalog, None, device=str(device), progress=False)
                    collapsed = any("collapsed" in warning for warning in result.warnings)
                    done[key] = {"P@1": result.best["P@1"], "collapsed": collapsed}
                    if options.out:
                        options.out.write_text(json.dumps(done, indent=1))
                cells[loss] = done[key]
            best = max(cells[name]["P@1"] for name in PEERS if name in cells)
            held = not cells["topk"]["collapsed"] and cells["topk"]["P@1"] >= best - LIMIT
            failed += not held
            shown = "".join(
                f"{cell['P@1']:11.1f}{'!' if cell['collapsed'] else ' '}" for cell in cells.values()
            )
            print(
                f"{catalog.name[:12]:12} {start:8} {count:6}  {shown} {'' if held else 'FAILED'}", flush=True
            )
    print("! collapsed;  FAILED: topk collapsed, or is more than two points behind the best peer")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
