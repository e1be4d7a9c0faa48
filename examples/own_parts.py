"""A loss, a sampler and a backbone of your own in a recipe: each is named as `module:Class`.

python examples/own_parts.py                        # embedded glyphs, a few seconds of training
python examples/own_parts.py --data photos --epochs 40
"""

import argparse

import torch
from torch import Tensor, nn

from firstpage import Pairs, Recipe, fit, read
from firstpage.data import GroupSampler
from firstpage.losses import Loss
from firstpage.losses.base import masked_logsumexp, masked_mean
from firstpage.models.backbones import Backbone


class SoftGap(Loss):
    """The soft maximum of a query's negative similarities, minus its mean positive similarity."""

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: the gap of each query; 0 for a query without a positive or without a negative."""
        push = self.temperature * masked_logsumexp(pairs.similarity / self.temperature, pairs.negative)
        pull = masked_mean(pairs.similarity, pairs.positive)
        usable = pairs.positive.any(dim=1) & pairs.negative.any(dim=1)
        return torch.where(usable, push - pull, 0.0)


class ShortEpochs(GroupSampler):
    """Batches as usual, but half of them in an epoch: more frequent evaluations."""

    def __len__(self) -> int:
        return max(1, super().__len__() // 2)


class Tiny(Backbone):
    """Three strided convolutions: a low, a middle and a high stage."""

    widths = (16, 32, 64)

    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__(checkpointing)
        pairs = zip((3, *self.widths), self.widths, strict=False)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in pairs
        )

    def stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The feature maps of the three stages."""
        low = self.layers[0](images)
        middle = self.layers[1](low)
        return low, middle, self.layers[2](middle)


def main() -> None:
    """Train with all three, and print the metrics before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="glyphs", help="a dataset with splits train and test")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    recipe = Recipe.of(
        {
            "model": {"backbone": "own_parts:Tiny", "dim": 64, "stored": 36, "crop": 32, "standardize": True},
            "loss": {"name": "own_parts:SoftGap", "temperature": 0.2},
            "batch": {"sampler": "own_parts:ShortEpochs", "size": 48, "images_per_class": 3},
            "augment": {"crop": "random", "flip": 0.0},
            "optimizer": {"lr": 1e-2, "head": 1.0},
            "schedule": {"epochs": args.epochs, "kind": "cosine"},
            "train": {"evaluate_every": args.epochs},
        }
    )
    catalog = read(args.data, **({"images": 3} if args.data == "glyphs" else {}))
    print(fit(recipe, catalog, progress=False).text())


if __name__ == "__main__":
    main()
