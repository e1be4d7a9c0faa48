"""Write a loss of your own: a subclass of `Loss` with one method, called like any other loss.

python examples/own_loss.py                        # embedded glyphs, a few seconds of training
python examples/own_loss.py --data photos --epochs 20
"""

import argparse

import torch
from torch import Tensor

from firstpage import Embedder, Pairs, data
from firstpage.losses import Loss
from firstpage.losses.base import masked_logsumexp, masked_mean


class SoftGap(Loss):
    """The soft maximum of a query's negative similarities, minus its mean positive similarity.

    The base class normalizes, works in float32 under autocast, accepts other candidates, and reduces.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: the gap of each query; 0 for a query without a positive or without a negative."""
        push = self.temperature * masked_logsumexp(pairs.similarity / self.temperature, pairs.negative)
        pull = masked_mean(pairs.similarity, pairs.positive)
        usable = pairs.positive.any(dim=1) & pairs.negative.any(dim=1)
        return torch.where(usable, push - pull, 0.0)


def main() -> None:
    """Train with the loss and print its value in each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="glyphs", help="a dataset with a train split")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    catalog = data.read(args.data, **({"images": 3} if args.data == "glyphs" else {})).split("train")
    pixels = data.PixelStore.build(catalog, size=36, progress=False)
    sampler = data.GroupSampler(catalog.labels, batch_size=48, images_per_class=3)
    model = Embedder.create(backbone="small", dim=64, stored=36, crop=32, standardize=True)
    loss, optimizer = SoftGap(temperature=0.1), torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(args.epochs):
        values = []
        for rows in sampler:
            value = loss(model(model.preprocess(pixels.batch(rows))), torch.as_tensor(catalog.labels[rows]))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            values.append(value.item())
        print(f"epoch {epoch + 1}: loss {sum(values) / len(values):.3f}")


if __name__ == "__main__":
    main()
