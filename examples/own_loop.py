"""Use a loss, the sampler and the pixel store in a training loop of your own, then evaluate.

python examples/own_loop.py                                     # embedded glyphs, a quarter of a minute
python examples/own_loop.py --data photos --backbone resnet50 --size 256 --crop 224 --epochs 10
"""

import argparse

import torch

from firstpage import Embedder, data, losses
from firstpage.evaluation import evaluate


def main() -> None:
    """Train and print the retrieval metrics before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="glyphs", help="a folder with one folder per class, or a table")
    parser.add_argument("--backbone", default="small", help="such as resnet50 or timm:NAME")
    parser.add_argument("--size", type=int, default=36, help="side of the stored images")
    parser.add_argument("--crop", type=int, default=32, help="side of the network's input")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(0)

    # Split by class, not by image: the test searches classes the network has never seen.
    catalog = data.read(args.data, **({"images": 8} if args.data == "glyphs" else {}))
    catalog = catalog if "test" in catalog.splits else catalog.split_classes(0.2, seed=0)
    train, test = catalog.split("train"), catalog.split("test")

    # Decode every image once. A batch holds 6 images from each of 16 classes.
    train_pixels = data.PixelStore.build(train, size=args.size, progress=False).to(args.device)
    test_pixels = data.PixelStore.build(test, size=args.size, progress=False)
    sampler = data.GroupSampler(train.labels, batch_size=96, images_per_class=6)
    augment = data.Augment.train(args.crop, flip=0.0)
    labels = torch.as_tensor(train.labels, device=args.device)

    # `standardize` helps a network that starts from random weights.
    shape = {"dim": 64, "stored": args.size, "crop": args.crop, "standardize": True}
    model = Embedder.create(backbone=args.backbone, **shape).to(args.device)
    loss = losses.TopKPrecision(k=5, margin=0.7)
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=1e-2, weight_decay=0.01)

    before = evaluate(model.embed(test_pixels, progress=False), test.labels, ks=(1, 8))
    for epoch in range(args.epochs):
        for rows in sampler:
            images = augment(train_pixels.batch(rows), seed=epoch, step=sampler.position)
            optimizer.zero_grad()
            loss(model(images), labels[rows]).backward()
            optimizer.step()
    after = evaluate(model.embed(test_pixels, progress=False), test.labels, ks=(1, 8))
    for name, found in (("untrained", before), ("trained", after)):
        print(f"{name:10} P@1 {found.precision[1]:5.1f}   R@8 {found.recall[8]:5.1f}")


if __name__ == "__main__":
    main()
