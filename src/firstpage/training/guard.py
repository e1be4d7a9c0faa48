"""The guard against NaN and infinity: it stops a run at the step, and keeps what reproduces it.

On a GPU it never waits. Each step leaves its verdict on the device: a flag that stays up, and a count of the
steps before it went up. The optimizer is handed the flag as its `found_inf`, by which fused optimizers leave
their update out (the way of `torch.amp.GradScaler`), so when the host looks, some steps later, the weights
are still those that produced the first NaN. The rows of the batches since the last look are kept on the
host; all draws are functions of the seed and the step. So the step can be repeated exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from firstpage.data.catalog import Catalog
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.recipes.recipe import Recipe
from firstpage.runs.checkpoint import write_state
from firstpage.training.memory import Memory
from firstpage.training.ranks import Ranks

__all__ = ["Guard", "NotFiniteError", "Scene", "gradients"]


class NotFiniteError(UserError):
    """A step whose embeddings, loss or gradient are not finite.

    Attributes:
        step: how many steps went well before it.
        image_ids: rows of the catalog in its batch.
        snapshot: what `reproduce` reads; None without a run folder.

    >>> NotFiniteError("text", 3, [7, 8], None).step
    3
    """

    def __init__(self, text: str, step: int, image_ids: list[int], snapshot: Path | None) -> None:
        super().__init__(text)
        self.step, self.image_ids, self.snapshot = step, image_ids, snapshot


@dataclass(frozen=True, eq=False)
class Scene:
    """What the steps of a run are made of, so that one can be repeated.

    Attributes:
        recipe: of the run.
        catalog: of the run.
        model: as it trains.
        criteria: the loss of each level.
        memories: the memory of each level, or none.
        train: the catalog's rows that are learned from.
        labels: their classes, from 0 without gaps, on the device.
        inputs: the network's input, given the rows of a batch among `train` and the step.
        half: whether the network runs in bfloat16.
        ranks: processes that share a batch.

    >>> Scene.__name__
    'Scene'
    """

    recipe: Recipe
    catalog: Catalog
    model: Embedder
    criteria: nn.ModuleList
    memories: Sequence[Memory]
    train: NDArray[np.int64]
    labels: Tensor
    inputs: Callable[[list[int], int], Tensor]
    half: bool
    ranks: Ranks

    def counts(self) -> list[Tensor]:
        """How far the memories have been filled; on the host."""
        return [memory.get_extra_state() for memory in self.memories]

    def snapshot(self, step: int, rows: list[int], counts: list[Tensor]) -> dict[str, Any]:
        """A step as `reproduce` reads it: its images, weights and memories."""
        return {
            "recipe": asdict(self.recipe),
            "step": step,
            "image_ids": self.train[rows].tolist(),
            "paths": [self.catalog.paths[row] for row in self.train[rows]],
            "images": self.inputs(rows, step),
            "labels": self.labels[rows],
            "model": self.model.state_dict(),
            "learned": [name for name, value in self.model.named_parameters() if value.requires_grad],
            "loss": self.criteria.state_dict(),
            "memories": [memory.state_dict() for memory in self.memories],
            "counts": counts,
            "classes": int(self.labels.max()) + 1,
            "catalog": len(self.catalog),
            "half": self.half,
            "world": self.ranks.world,
        }


class Guard:
    """Watches the steps of a run.

    Args:
        scene: what the steps are made of.
        device: of the run.
        folder: the run's, for the snapshot.
        eager: look at once, where looking is free; by default on the CPU.

    >>> guard = Guard(scene=None, device=torch.device("cpu"))
    >>> guard.begin(0, [3, 1])
    >>> guard.end(torch.tensor(0.5), [torch.ones(2)])
    >>> guard.verdict  # no bad step, one good
    tensor([0., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        scene: Scene | None,
        device: torch.device,
        folder: Path | None = None,
        *,
        eager: bool | None = None,
    ) -> None:
        self.scene, self.folder = scene, folder
        self.eager = device.type == "cpu" if eager is None else eager
        self.bad = torch.zeros((), device=device)  # 1 from the first bad step on
        self.good = torch.zeros((), dtype=torch.int64, device=device)  # steps begun before that
        self._scale = torch.ones((), device=device)  # multiplies what is checked: nothing changes
        self._sums: list[Tensor] = []
        self._begun = 0
        self._recent: list[tuple[int, list[int], list[Tensor]]] = []  # since the last look

    @property
    def verdict(self) -> Tensor:
        """[2] for `judge`, to be read together with other figures."""
        return torch.stack([self.bad.double(), self.good.double()])

    def begin(self, step: int, rows: list[int]) -> None:
        """A step begins."""
        self._recent.append((step, rows, self.scene.counts() if self.scene is not None else []))
        self._begun += 1

    def expect(self, *values: Tensor) -> None:
        """These must be finite when the step ends; where looking is free, now."""
        self._sums += [value.detach().sum(dtype=torch.float32) for value in values]  # NaN outlasts a sum
        if self.eager:
            self._check(self._sums)

    def end(self, loss: Tensor, gradients: Iterable[Tensor]) -> None:
        """The step ends, before the optimizer's: it has gone well if all was finite, until here."""
        self._check([*gradients, loss, *self._sums])
        self._sums.clear()
        self.good += self.bad == 0

    def _check(self, values: list[Tensor]) -> None:
        """Raise the flag if any value is not finite: one kernel for all of them, that of `GradScaler`."""
        for dtype in {value.dtype for value in values}:
            group = [value for value in values if value.dtype == dtype]
            torch._amp_foreach_non_finite_check_and_unscale_(group, self.bad, self._scale)
        if self.eager and self.bad.item():
            self.look()

    def protect(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep a fused optimizer from stepping once the flag is up; where looking is free nobody needs it."""
        if not self.eager:
            optimizer.found_inf = self.bad  # type: ignore[attr-defined]

    def look(self) -> None:
        """Wait for the device, and stop if a step was bad: before its model is evaluated or kept."""
        self.judge(self.verdict.tolist())

    def judge(self, verdict: Sequence[float]) -> None:
        """Stop, if a `verdict` that was read says so."""
        bad, good = verdict
        if not bad:
            behind = self._begun - int(good)  # steps begun since the verdict was given
            self._recent = self._recent[-behind:] if behind else []
            return
        step, rows, counts = self._recent[int(good) - self._begun]
        assert self.scene is not None
        if not self.scene.ranks.first:
            self.scene.ranks.wait()  # for the end of the first: this one's would end it inside its snapshot
        about = self.scene.snapshot(step, rows, counts)
        ids, paths = about["image_ids"], about["paths"]
        path, again = None, "give a run folder to keep what reproduces it"
        if self.folder is not None:
            path = self.folder / "not-finite.safetensors"
            write_state(path, about)
            command = (
                f"from firstpage.training.reproduce import reproduce; print(reproduce({str(path)!r}).text())"
            )
            again = f'python -c "{command}" shows it again'
        shown = ", ".join(map(str, ids[:4])) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")
        raise NotFiniteError(
            f"after step {step}: NaN or infinity on images {shown} ({', '.join(paths[:2])}, …): {again}; "
            "try a lower optimizer.lr, optimizer.clip=1.0 or train.precision='fp32'",
            step,
            ids,
            path,
        )


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients of some parameters, where there are any.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> layer(torch.tensor([[3.0, 4.0]])).sum().backward()
    >>> gradients(layer.parameters())
    [tensor([[3., 4.]])]
    """
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
