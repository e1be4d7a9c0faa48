"""How weights move: the optimiser with a rate for each part, the schedule of the rates, an average."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from firstpage.models.embedder import Embedder
from firstpage.training.settings import OptimiserSettings, ScheduleSettings

__all__ = ["follow", "make_optimiser", "rate"]


def make_optimiser(
    settings: OptimiserSettings, model: Embedder, losses: nn.Module
) -> tuple[torch.optim.Optimizer, list[float]]:
    """The optimiser, and the base rate of each of its groups.

    Backbone, head and loss have rates of their own; biases and norms (one-dimensional parameters) and the
    loss's parameters have no weight decay.

    >>> from firstpage.losses import Margin
    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> make_optimiser(OptimiserSettings(lr=1.0, head=10), model, Margin())[1]
    [1.0, 1.0, 10.0, 10.0, 10.0]
    """
    groups: list[dict[str, Any]] = []
    for module, multiple in ((model.backbone, 1.0), (model.heads, settings.head)):
        # Frozen batch norms take no gradient, so they must not decay either.
        learnt = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for decay in (True, False):
            chosen = [parameter for parameter in learnt if (parameter.ndim > 1) == decay]
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
def follow(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Draw an average of a model's weights, of the same shape, a step of 1 − `decay` towards them.

    >>> average, model = (nn.Linear(1, 1, bias=False) for _ in range(2))
    >>> average.weight.data.fill_(0), model.weight.data.fill_(1)
    (tensor([[0.]]), tensor([[1.]]))
    >>> follow(average, model, decay=0.75)
    >>> average.weight.data
    tensor([[0.2500]])
    """
    for mean, value in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(value, 1 - decay)
        else:
            mean.copy_(value)
