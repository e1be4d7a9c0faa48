"""A step with NaN or infinity, saved to a file and repeated from it: where the NaN came from."""

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from firstpage.models.embedder import Embedder
from firstpage.recipes.recipe import Recipe
from firstpage.runs.checkpoint import read_state, write_state
from firstpage.training.batches import TrainBatches
from firstpage.training.criteria import make_criteria
from firstpage.training.memory import Memory
from firstpage.training.optimizer import gradients
from firstpage.training.ranks import Ranks
from firstpage.training.step import TrainStep


class Batch(NamedTuple):
    """The step, its rows among the training images, and how full each memory was."""

    step: int
    rows: list[int]
    counts: list[Tensor]


def save_snapshot(path: Path, step: TrainStep, batches: TrainBatches, batch: Batch) -> Path:
    """Save a step for `reproduce`: its images, and the weights and memories as they are now."""
    ids = batches.rows[batch.rows].tolist()
    state = {
        "recipe": asdict(step.recipe),
        "step": batch.step,
        "image_ids": ids,
        "paths": [batches.path(row) for row in ids],
        "images": batches.images(batch.rows, batch.step, slice(0, len(ids))),
        "labels": batches.labels[batch.rows],
        "model": step.model.state_dict(),
        "trained": [name for name, value in step.model.named_parameters() if value.requires_grad],
        "loss": step.criteria.state_dict(),
        "memories": [memory.state_dict() for memory in step.memories],
        "counts": batch.counts,
        "classes": int(batches.labels.max()) + 1,
        "catalog": len(batches.catalog),
        "half": step.half,
        "world": step.ranks.world_size,
    }
    write_state(path, state)
    return path


@dataclass(frozen=True)
class Reproduction:
    """What a snapshot's step gave when it was repeated.

    Attributes:
        step: Number of good steps before it.
        paths: The images of the batch.
        image_ids: Their rows in the catalog.
        loss: The loss of the step.
        gradient_norm: The norm of the model's gradient.
        where: The first value that is not finite: a layer, `loss` or `gradient of` a parameter; None if all
            are finite.

    >>> print(Reproduction(3, ["a.png"], [7], math.nan, math.nan, "heads.0.1").text())
    after step 3: loss nan, gradient norm nan; first not finite: heads.0.1
    7 a.png
    """

    step: int
    paths: list[str]
    image_ids: list[int]
    loss: float
    gradient_norm: float
    where: str | None

    def text(self) -> str:
        """Return the values, the layer and all images of the batch for a person to read."""
        lines = [
            f"after step {self.step}: loss {self.loss:g}, gradient norm {self.gradient_norm:g}; "
            f"first not finite: {self.where or 'nothing'}"
        ]
        lines += [f"{row} {path}" for row, path in zip(self.image_ids, self.paths, strict=True)]
        return "\n".join(lines)


def reproduce(
    snapshot: str | os.PathLike[str], device: str = "cpu", *, loss: nn.Module | None = None
) -> Reproduction:
    """Repeat the step that stopped a run, with all its images, weights, memories and random numbers.

    Args:
        snapshot: The file named in the error message.
        device: Where to repeat it. A step in bfloat16 may be finite on another device than its own.
        loss: The loss object, if the run was given one by `fit(loss=...)`.

    Raises:
        UserError: The file is damaged.

    >>> reproduce("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no such file
    """
    state, target = read_state(snapshot), torch.device(device)
    recipe = Recipe.of(state["recipe"])
    recipe = replace(recipe, train=replace(recipe.train, compile=False))
    model = Embedder(replace(recipe.model, weights=None)).to(target).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.load_state_dict(state["model"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in state["trained"])
    sizes = state["classes"], state["catalog"]
    criteria = make_criteria(recipe.loss, model, *sizes, loss, recipe.ensemble).to(target)
    criteria.load_state_dict(state["loss"])
    memories = []
    for saved, counts, dim in zip(state["memories"], state["counts"], model.level_dims, strict=False):
        memory = Memory(recipe.memory.size, dim, recipe.memory.start)
        memory.load_state_dict(saved)
        memory.set_extra_state(counts)
        memories.append(memory.to(target))
    found: list[str] = []
    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(_find_non_finite(name, found))
    images = state["images"].to(target)
    if images.ndim == 4:  # not features
        images = images.contiguous(memory_format=torch.channels_last)
    labels, ids = state["labels"].to(target), torch.tensor(state["image_ids"], device=target)
    shares = [Ranks(rank, state["world"]).share(len(labels)) for rank in range(state["world"])]
    marked = int((labels < 0).sum())
    step = TrainStep(recipe, model, criteria, memories, half=state["half"], marked=marked)
    value = math.nan
    try:
        value = step(lambda rows: images[rows], labels, ids, state["step"], shares=shares).item()
    except ValueError:  # on the CPU, losses refuse embeddings that are not finite
        if not found:
            raise
    else:
        found += [] if math.isfinite(value) else ["loss"]
    for name, parameter in [*model.named_parameters(), *criteria.named_parameters()]:
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            found.append(f"gradient of {name}")
    norm = math.nan
    if math.isfinite(value):
        norm = float(nn.utils.get_total_norm(gradients(step.parameters)))
    where = found[0] if found else None
    return Reproduction(state["step"], state["paths"], state["image_ids"], value, norm, where)


def _find_non_finite(name: str, found: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    def check(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ANN401
        if isinstance(output, Tensor) and not output.isfinite().all():
            found.append(name)

    return check
