"""How weights move: the optimizer with a rate for each part, the schedule of the rates, an average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from firstpage.models.embedder import Embedder
from firstpage.recipes.settings import OptimizerSettings, ScheduleSettings

__all__ = ["follow", "make_optimizer", "rate"]


def make_optimizer(
    settings: OptimizerSettings, model: Embedder, losses: nn.Module
) -> tuple[torch.optim.Optimizer, list[float]]:
    """The optimizer, and the base rate of each of its groups.

    Backbone, head and loss have rates of their own; biases and norms (one-dimensional parameters) and the
    loss's parameters have no weight decay.

    >>> from firstpage.losses import Margin
    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> make_optimizer(OptimizerSettings(lr=1.0, head=10), model, Margin())[1]
    [1.0, 1.0, 10.0, 10.0, 10.0]
    """
    groups: list[dict[str, Any]] = []
    for module, multiple in ((model.backbone, 1.0), (model.heads, settings.head)):
        # Frozen batch norms take no gradient, so they must not decay either.
        learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for decay in (True, False):
            chosen = [parameter for parameter in learned if (parameter.ndim > 1) == decay]
            groups.append(
                {
                    "params": chosen,
                    "lr": settings.lr * multiple,
                    "weight_decay": settings.weight_decay if decay else 0.0,
                }
            )
    groups.append(
        {"params": list(losses.parameters()), "lr": settings.lr * settings.loss, "weight_decay": 0.0}
    )
    groups = [group for group in groups if group["params"]]
    rates = [group["lr"] for group in groups]
    fused = model.device.type == "cuda"  # quicker, and what the guard against NaN can hold back
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=fused), rates
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return kind(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=fused), rates


def rate(settings: ScheduleSettings, step: int, steps: int) -> float:
    """What the rates are multiplied by at one of `steps` steps.

    >>> [round(rate(ScheduleSettings(epochs=10), step, 100), 3) for step in (0, 59, 60, 85, 99)]
    [1.0, 1.0, 0.1, 0.01, 0.01]
    >>> round(rate(ScheduleSettings(kind="cosine"), 50, 100), 3)
    0.5
    """
    done = step / steps
    warm = min(1.0, (step + 1) / max(1.0, settings.warmup * steps / settings.epochs))
    if settings.kind == "cosine":
        return warm * (1 + math.cos(math.pi * done)) / 2
    if settings.kind == "step":
        return warm * settings.factor ** sum(done >= milestone for milestone in settings.milestones)
    return warm


@torch.no_grad()
def follow(means: Sequence[Tensor], values: Sequence[Tensor], decay: float) -> None:
    """Draw averages of a model's values a step of 1 − `decay` towards them; counts just follow.

    Args:
        means: the averages, changed in place.
        values: what they are averages of, in the same order.
        decay: how much of the averages is kept.

    >>> means, values = [torch.zeros(1), torch.tensor(0)], [torch.ones(1), torch.tensor(7)]
    >>> follow(means, values, decay=0.75)
    >>> means
    [tensor([0.2500]), tensor(7)]
    """
    for learned in (True, False):
        of = [place for place, mean in enumerate(means) if mean.is_floating_point() == learned]
        some, towards = [means[place] for place in of], [values[place] for place in of]
        if some and learned:  # a few kernels for all of them, not one each
            torch._foreach_lerp_(some, towards, 1 - decay)
        elif some:
            torch._foreach_copy_(some, towards)
