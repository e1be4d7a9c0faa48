"""Every loss with a small network in float64, and the plain step that all other ways must equal."""

import torch
from torch import nn

from firstpage import losses, mining
from firstpage.training.seeding import seeded
from support.batches import sized

CLASSES, DIM, IMAGES = 4, 5, 40
CPU = torch.device("cpu")

_SETTINGS = {"topk": {"k": 2, "decorrelation": 0.1}}
LOSSES = {
    name: lambda name=name: losses.create(name, **sized(name, CLASSES, DIM), **_SETTINGS.get(name, {}))
    for name in losses.names()
} | {
    "recall-at-k-simix": lambda: losses.RecallAtK(simix=2),
    "margin-all-betas": lambda: losses.Margin(classes=CLASSES, images=IMAGES, nu=0.3),
    "combined": lambda: losses.Combined(
        [losses.Margin(classes=CLASSES), losses.Contrastive(negatives="uniform"), losses.RankedList()],
        [1.0, 0.5, 2.0],
    ),
    "nca-random-positives": lambda: losses.NCA(positives="random", negatives="distance_weighted"),
    "nca-boundary": lambda: losses.NCA(mining=mining.boundary(k=2)),
    "sum": lambda: losses.Histogram(reduction="sum"),
}


class Network(nn.Module):
    """Two levels, as a multilevel head gives them."""

    def __init__(self, dropout=0.0, batch_norm=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Dropout(dropout))
        self.norm = nn.BatchNorm1d(9) if batch_norm else nn.Identity()
        self.heads = nn.ModuleList(nn.Linear(9, DIM) for _ in range(2))

    def forward(self, images):
        features = self.norm(self.body(images))
        return tuple(head(features) for head in self.heads)


def made(name, dropout=0.0, batch_norm=False):
    """A network and the losses of its two levels, always of the same weights."""
    torch.manual_seed(3)
    network = Network(dropout, batch_norm).double()
    return network, nn.ModuleList(LOSSES[name]() for _ in range(2)).double()


def batch(rows, number=0):
    """Images, labels and ids of a global batch; batches share some images."""
    generator = torch.Generator().manual_seed(100 + number)
    ids = torch.randperm(IMAGES, generator=generator)[:rows]
    everything = torch.randn(IMAGES, 7, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    return everything[ids], ids % CLASSES, ids


def total(criteria, levels, labels, number=0, **more):
    """The loss over both levels; its lots are those of step `number`."""
    with seeded(CPU, "loss", number):
        return sum(part(level, labels, **more) for part, level in zip(criteria, levels, strict=True))


def plain(name, rows):
    """Loss and gradients of one process that embeds the whole batch at once."""
    network, criteria = made(name)
    images, labels, ids = batch(rows)
    loss = total(criteria, network(images), labels, image_ids=ids)
    loss.backward()
    return loss.detach(), gradients(network, criteria)


def gradients(*modules):
    return {
        f"{number}.{name}": parameter.grad
        for number, module in enumerate(modules)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def assert_same(got, wanted, tolerance=1e-9):
    """Loss and gradients agree: far closer than the 1e-6 that is asked for."""
    torch.testing.assert_close(got[0], wanted[0], rtol=tolerance, atol=tolerance)
    assert got[1].keys() == wanted[1].keys()
    for name, gradient in wanted[1].items():
        torch.testing.assert_close(got[1][name], gradient, rtol=tolerance, atol=tolerance, msg=name)
