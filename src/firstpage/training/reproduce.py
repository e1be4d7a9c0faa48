"""The step that a guard stopped at, once more: where NaN or infinity came from."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from firstpage.models.embedder import Embedder
from firstpage.recipes.recipe import Recipe
from firstpage.runs.checkpoint import read_state
from firstpage.training.criteria import make_criteria, total
from firstpage.training.gradient_caching import places
from firstpage.training.guard import gradients
from firstpage.training.memory import Memory
from firstpage.training.ranks import Ranks
from firstpage.training.seeding import draws

__all__ = ["Reproduction", "reproduce"]


@dataclass(frozen=True)
class Reproduction:
    """What came of a snapshot's step when it was repeated.

    Attributes:
        step: how many went well before it.
        paths: of the batch's images.
        image_ids: their rows in the catalog.
        loss: of the step.
        gradient_norm: of the model's gradient.
        where: the first place that is not finite: a layer, `loss` or `gradient of` a parameter; None if
            all is finite.

    >>> print(Reproduction(3, ["a.png"], [7], math.nan, math.nan, "heads.0.1").text())
    after step 3: loss nan, norm of the gradient nan; first not finite: heads.0.1
    7 a.png
    """

    step: int
    paths: list[str]
    image_ids: list[int]
    loss: float
    gradient_norm: float
    where: str | None

    def text(self) -> str:
        """For a person: figures, place, and all images of the batch."""
        lines = [
            f"after step {self.step}: loss {self.loss:g}, norm of the gradient {self.gradient_norm:g}; "
            f"first not finite: {self.where or 'nothing'}"
        ]
        lines += [f"{row} {path}" for row, path in zip(self.image_ids, self.paths, strict=True)]
        return "\n".join(lines)


def reproduce(snapshot: str | os.PathLike[str], device: str = "cpu") -> Reproduction:
    """Repeat the step that a guard stopped at, with all its images, weights, memories and draws.

    Args:
        snapshot: the file named in the message.
        device: where; a step in bfloat16 may go well on another device than its own.

    Raises:
        UserError: the file is damaged.

    >>> reproduce("nowhere")
    Traceback (most recent call last):
    firstpage.errors.UserError: nowhere: damaged or no checkpoint
    """
    state, place = read_state(snapshot), torch.device(device)
    recipe = Recipe.of(state["recipe"])
    model = Embedder(replace(recipe.model, weights=None)).to(place).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.load_state_dict(state["model"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in state["learned"])
    criteria = make_criteria(recipe, model, state["classes"], state["catalog"]).to(place)
    criteria.load_state_dict(state["loss"])
    found: list[str] = []
    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(_finder(name, found))
    images = state["images"].to(place, memory_format=torch.channels_last)
    labels, ids = state["labels"].to(place), torch.tensor(state["image_ids"], device=place)
    memories = []
    for remembered, counts in zip(state["memories"], state["counts"], strict=True):
        memory = Memory(recipe.memory.size, model.level_dim, recipe.memory.start)
        memory.load_state_dict(remembered)
        memory.set_extra_state(counts)
        memories.append(memory.to(place))
    seed, step = recipe.train.seed, state["step"]
    pieces = []
    for rank in range(state["world"]):  # as the ranks and their chunks drew
        share = Ranks(rank, state["world"]).share(len(labels))
        for at in places(share.stop - share.start, recipe.batch.chunk):
            with (
                draws(place, "dropout", seed, step, share.start, at.start),
                torch.autocast(place.type, torch.bfloat16, enabled=state["half"]),
            ):
                pieces.append(model.raw(images[share][at]))
    levels = [torch.cat(parts) for parts in zip(*pieces, strict=True)]
    loss = math.nan
    try:
        with draws(place, "loss", seed, step):
            value = total(criteria, levels, labels, ids, memories)
        loss = value.item()
        if not math.isfinite(loss):
            found.append("loss")
        value.backward()  # type: ignore[no-untyped-call]
    except ValueError:  # on the CPU, pairs complain of embeddings that are not finite
        if not found:
            raise
    for name, parameter in [*model.named_parameters(), *criteria.named_parameters()]:
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            found.append(f"gradient of {name}")
    norm = float(nn.utils.get_total_norm(gradients(model.parameters()))) if math.isfinite(loss) else math.nan
    return Reproduction(step, state["paths"], state["image_ids"], loss, norm, found[0] if found else None)


def _finder(name: str, found: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    def look(module: nn.Module, given: Any, made: Any) -> None:  # noqa: ANN401
        if isinstance(made, Tensor) and not made.isfinite().all():
            found.append(name)

    return look
