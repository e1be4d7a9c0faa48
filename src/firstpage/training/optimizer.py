"""The optimizer with a learning rate for each part of the model, its schedule, and the average of weights."""

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from firstpage.models.embedder import Embedder
from firstpage.recipes.settings import OptimizerSettings, ScheduleSettings

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def make_optimizer(settings: OptimizerSettings, model: Embedder, losses: nn.Module) -> torch.optim.Optimizer:
    """Create the optimizer. Each of its groups holds its base learning rate as `initial_lr`.

    Backbone, head and loss have learning rates of their own; biases and norms (one-dimensional parameters)
    and the loss's parameters have no weight decay.

    >>> from firstpage.losses import Margin
    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> optimizer = make_optimizer(OptimizerSettings(lr=1.0, head=10), model, Margin())
    >>> [group["initial_lr"] for group in optimizer.param_groups]
    [1.0, 1.0, 10.0, 10.0, 10.0]
    """
    groups: list[dict[str, Any]] = []
    learned = set(losses.parameters())  # some may be a part of the model, too
    for pretrained, multiple in ((True, 1.0), (False, settings.head)):
        # Frozen batch norms take no gradient, so they must not decay either.
        trained = [
            parameter
            for name, parameter in model.named_parameters()
            if name.startswith("backbone.") == pretrained
            and parameter.requires_grad
            and parameter not in learned
        ]
        for decay in (True, False):
            chosen = [parameter for parameter in trained if (parameter.ndim > 1) == decay]
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
    groups = [group | {"initial_lr": group["lr"]} for group in groups if group["params"]]
    fused = True  # faster, and on a GPU the guard against NaN can make it skip an update
    if settings.name == "sgd":
        return _uncompiled(torch.optim.SGD)(groups, lr=settings.lr, momentum=settings.momentum, fused=fused)
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return _uncompiled(kind)(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=fused)


def _uncompiled(kind: type[_Optimizer]) -> type[_Optimizer]:
    """Return an optimizer without what keeps its methods from being compiled.

    That would import the compiler, which takes 3 s, before the first step.
    """
    names = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


def set_lr(
    optimizer: torch.optim.Optimizer, settings: ScheduleSettings, step: int, steps: int, scale: float = 1.0
) -> None:
    """Set the learning rates of one of `steps` steps, times `scale`.

    >>> optimizer = torch.optim.SGD([{"params": [torch.zeros(1)], "initial_lr": 2.0}])
    >>> set_lr(optimizer, ScheduleSettings(kind="cosine"), 50, 100)
    >>> round(optimizer.param_groups[0]["lr"], 3)
    1.0
    """
    factor = scale * lr_factor(settings, step, steps)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def lr_factor(settings: ScheduleSettings, step: int, steps: int) -> float:
    """Return what the learning rates are multiplied by at one of `steps` steps.

    >>> [round(lr_factor(ScheduleSettings(epochs=10), step, 100), 3) for step in (0, 59, 60, 85, 99)]
    [1.0, 1.0, 0.1, 0.01, 0.01]
    """
    done = step / steps
    warm = min(1.0, (step + 1) / max(1.0, settings.warmup * steps / settings.epochs))
    if settings.kind == "cosine":
        return warm * (1 + math.cos(math.pi * done)) / 2
    if settings.kind == "step":
        return warm * settings.factor ** sum(done >= milestone for milestone in settings.milestones)
    return warm


@torch.no_grad()
def update_ema(averages: Sequence[Tensor], values: Sequence[Tensor], decay: float) -> None:
    """Update exponential moving averages in place; integers are copied.

    Args:
        averages: Changed in place.
        values: The current values, in the same order.
        decay: The share of the averages that is kept.

    >>> averages, values = [torch.zeros(1), torch.tensor(0)], [torch.ones(1), torch.tensor(7)]
    >>> update_ema(averages, values, decay=0.75)
    >>> averages
    [tensor([0.2500]), tensor(7)]
    """
    for floating in (True, False):
        chosen = [number for number, value in enumerate(values) if value.is_floating_point() == floating]
        targets, sources = [averages[number] for number in chosen], [values[number] for number in chosen]
        if chosen and floating:  # a few kernels for all of them, not one each
            torch._foreach_lerp_(targets, sources, 1 - decay)
        elif chosen:
            torch._foreach_copy_(targets, sources)


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the gradients of those parameters that have one.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> layer(torch.tensor([[3.0, 4.0]])).sum().backward()
    >>> gradients(layer.parameters())
    [tensor([[3., 4.]])]
    """
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
