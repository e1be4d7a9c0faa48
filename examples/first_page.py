"""Train every loss on made-up features and show how right the first page of results becomes, on new classes.

The features hold a class signal in a few directions and loud nuisance in the others (think: lighting and
background); a linear embedding must learn which is which from some classes, and is asked about others.
"""

from __future__ import annotations

import time

import torch

from firstpage import Pairs, losses

CLASSES, IMAGES, SIGNAL, FEATURES, DIMENSIONS, PAGE = 60, 8, 12, 64, 32, 5


def made_up_features(classes: int, mixing: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[classes × IMAGES, FEATURES] features and their labels."""
    labels = torch.arange(classes * IMAGES) // IMAGES
    signal = torch.randn(classes, SIGNAL)[labels] + 0.35 * torch.randn(len(labels), SIGNAL)
    nuisance = 3 * torch.randn(len(labels), FEATURES - SIGNAL)
    return torch.cat([signal, nuisance], dim=1) @ mixing / 4, labels


def precision(embeddings: torch.Tensor, labels: torch.Tensor, k: int) -> float:
    """The share of a query's k nearest images that are of its class, in percent."""
    pairs = Pairs.of(embeddings, labels)
    similarity = pairs.similarity.masked_fill(~(pairs.positive | pairs.negative), -torch.inf)
    found = similarity.topk(k).indices
    return 100 * pairs.positive.gather(1, found).float().mean().item()


def train(name: str, features: torch.Tensor, labels: torch.Tensor) -> torch.nn.Module:
    """A linear embedding trained by that loss on batches of 12 classes × IMAGES images."""
    torch.manual_seed(0)
    network = torch.nn.Linear(FEATURES, DIMENSIONS, bias=False)
    settings = {"classes": CLASSES, "dim": DIMENSIONS} if name == "proxy-nca" else {}
    loss = losses.create(name, **settings)
    optimiser = torch.optim.Adam([*network.parameters(), *loss.parameters()], lr=0.01)
    for _ in range(200):
        classes = torch.randperm(CLASSES)[:12]
        rows = torch.isin(labels, classes).nonzero().squeeze(1)
        rows = rows[torch.randperm(len(rows))]  # N-pair takes the first two of a class: let them be any two
        optimiser.zero_grad()
        loss(network(features[rows]), labels[rows]).backward()
        optimiser.step()
    return network


def main() -> None:
    """Print a row a loss."""
    torch.manual_seed(0)
    mixing = torch.linalg.qr(torch.randn(FEATURES, FEATURES)).Q
    features, labels = made_up_features(CLASSES, mixing)
    unseen, unseen_labels = made_up_features(CLASSES, mixing)
    torch.manual_seed(0)
    untrained = torch.nn.Linear(FEATURES, DIMENSIONS, bias=False)
    print(f"{CLASSES} classes × {IMAGES} images to learn from, {CLASSES} other classes to be asked about\n")
    print(f"{'loss':18} {'P@1':>6} {f'P@{PAGE}':>6}   first pages that are right {'':>5} seconds")
    for name in (None, *losses.names()):
        start = time.perf_counter()
        network = train(name, features, labels) if name else untrained
        with torch.no_grad():
            embeddings = network(unseen)
        first, page = (precision(embeddings, unseen_labels, k) for k in (1, PAGE))
        bar = "█" * round(page * 0.3)
        spent = f"{time.perf_counter() - start:.1f}" if name else ""
        print(f"{name or '(untrained)':18} {first:6.1f} {page:6.1f}   {bar:30} {spent:>8}", flush=True)


if __name__ == "__main__":
    main()
