"""The systems of the recipes with a small network, and a step of each."""

from functools import cache

import torch

from firstpage import recipes
from firstpage.models.embedder import Embedder
from firstpage.recipes import Recipe
from firstpage.training.criteria import make_criteria
from firstpage.training.ranks import Ranks
from firstpage.training.step import TrainStep

SMALL = {
    "model": {"backbone": "small", "dim": 24, "stored": 36, "crop": 32, "standardize": True},
    "batch": {"size": 32, "images_per_class": 4},
    "augment": {"crop": "center", "flip": 0.0},
    "optimizer": {"lr": 6e-3, "head": 1.0, "loss": 1.0},
    "schedule": {"epochs": 12, "kind": "cosine"},
    "train": {"protocol": "paper", "evaluate_every": 12},
}
SYSTEMS = {
    "hdc": ("cub-hdc", [8, 8, 8]),
    "bier": ("cub-bier", [5, 8, 11]),
    "abe": ("cub-abe", [8, 8, 8]),
}


def small(name, *changes):
    """The system of a recipe, with a small network."""
    recipe, learners = SYSTEMS[name]
    shipped = recipes.find(recipe)
    table = SMALL | {
        "model": SMALL["model"] | {"head": shipped.model.head, "learners": learners},
        "loss": shipped.loss,
        "ensemble": vars(shipped.ensemble),
    }
    return Recipe.of(table).changed(changes)


def step_of(ranks, name, chunk=0):
    """One step of a rank over a batch of eleven images: loss, and gradients of model and losses."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster, for something so small
    torch.manual_seed(0)
    recipe = small(name, f"batch.chunk={chunk}", "model.freeze_batch_norm=true", "model.standardize=false")
    if name == "bier":
        recipe = recipe.changed(["ensemble.diversity=adversarial"])
    model = Embedder(recipe.model).double()
    images = torch.randn(11, 3, 16, 16, dtype=torch.float64)
    labels, ids = torch.arange(11) // 3, torch.arange(11)
    criteria = make_criteria(recipe.loss, model, 4, 11, ensemble=recipe.ensemble).double()
    step = TrainStep(recipe, model.train(), criteria, ranks=ranks)
    loss = step(lambda rows: images[rows], labels, ids, step=0)
    torch.set_num_threads(threads)
    parts = [*model.named_parameters(), *criteria.named_parameters()]
    return loss, {key: value.grad for key, value in parts if value.grad is not None}


@cache
def alone(name, chunk=0):
    """The step of one process over the whole batch."""
    return step_of(Ranks(), name, chunk)
