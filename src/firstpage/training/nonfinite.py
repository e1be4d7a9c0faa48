"""The guard against NaN and infinity: it stops a run at the step, and saves what reproduces it.

On a GPU it never waits. Each step leaves its result on the device: a flag that stays set, and the number of
steps before it was set. The optimizer is given the flag as its `found_inf`, by which fused optimizers skip
their update (as with `torch.amp.GradScaler`), so when the host reads the flag some steps later, the weights
are still those that produced the first NaN. The rows of the batches since the last check are kept on the
host; all random numbers are functions of the seed and the step. So the step can be repeated exactly.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.training.batches import TrainBatches
from firstpage.training.reproduction import Batch, save_snapshot
from firstpage.training.step import TrainStep


class NonFiniteError(UserError):
    """A step whose embeddings, loss or gradients are not finite.

    Attributes:
        step: Number of good steps before it.
        image_ids: Rows of the catalog in its batch.
        snapshot: The file that `reproduce` reads; None without a run folder.

    >>> NonFiniteError("message", 3, [7, 8], None).step
    3
    """

    def __init__(self, message: str, step: int, image_ids: list[int], snapshot: Path | None) -> None:
        super().__init__(message)
        self.step, self.image_ids, self.snapshot = step, image_ids, snapshot


class NonFiniteGuard:
    """Checks every step of a run for NaN and infinity.

    Args:
        step: The step of the run, for the snapshot of a failed one.
        batches: The batches of the run, likewise.
        device: The device of the run.
        folder: The run folder, for the snapshot.
        eager: Check at once. Defaults to the CPU, where it costs nothing.

    >>> guard = NonFiniteGuard(None, None, torch.device("cpu"))
    >>> guard.begin(0, [3, 1])
    >>> guard.end(torch.tensor(0.5), [torch.ones(2)])
    >>> guard.status  # no bad step, one good
    tensor([0., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        step: TrainStep | None,
        batches: TrainBatches | None,
        device: torch.device,
        folder: Path | None = None,
        *,
        eager: bool | None = None,
    ) -> None:
        self._step, self._batches, self.folder = step, batches, folder
        self.eager = device.type == "cpu" if eager is None else eager
        self.bad = torch.zeros((), device=device)  # 1 from the first bad step on
        self.good = torch.zeros((), dtype=torch.int64, device=device)  # steps begun before that
        self._scale = torch.ones((), device=device)  # multiplies what is checked: nothing changes
        self._sums: list[Tensor] = []
        self._begun = 0
        self._recent: list[Batch] = []  # since the last check

    @property
    def status(self) -> Tensor:
        """[2] for `check`: whether a step was bad, and the steps before it; to be read with other metrics."""
        return torch.stack([self.bad.double(), self.good.double()])

    def begin(self, index: int, rows: list[int]) -> None:
        """Begin a step."""
        memories = () if self._step is None else self._step.memories
        self._recent.append(Batch(index, rows, [memory.get_extra_state() for memory in memories]))
        self._begun += 1

    def expect_finite(self, *values: Tensor) -> None:
        """Check values of the step: now if eager, else when the step ends."""
        self._sums += [value.detach().sum(dtype=torch.float32) for value in values]  # NaN outlasts a sum
        if self.eager:
            self._set_flag(self._sums)

    def end(self, loss: Tensor, gradients: Iterable[Tensor]) -> None:
        """End a step, before the optimizer's: it was good if everything so far was finite."""
        self._set_flag([*gradients, loss, *self._sums])
        self._sums.clear()
        self.good += self.bad == 0

    def _set_flag(self, values: list[Tensor]) -> None:
        """Set the flag if any value is not finite: one kernel for all of them, that of `GradScaler`."""
        for dtype in {value.dtype for value in values}:
            group = [value for value in values if value.dtype == dtype]
            torch._amp_foreach_non_finite_check_and_unscale_(group, self.bad, self._scale)
        if self.eager and self.bad.item():
            self.check()

    def protect(self, optimizer: torch.optim.Optimizer) -> None:
        """Make a fused optimizer skip its updates once the flag is set; an eager guard stops before them."""
        if not self.eager:
            optimizer.found_inf = self.bad  # type: ignore[attr-defined]

    def check(self, status: Sequence[float] | None = None) -> None:
        """Stop the run if a step was bad.

        Args:
            status: The values of `status` if they have been read. Defaults to reading them now, for which
                the host waits for the device.

        Raises:
            NonFiniteError: A step was bad; its snapshot has been saved if there is a run folder.
        """
        bad, good = self.status.tolist() if status is None else status
        if not bad:
            behind = self._begun - int(good)  # steps begun since the status was taken
            self._recent = self._recent[-behind:] if behind else []
            return
        batch = self._recent[int(good) - self._begun]
        assert self._step is not None
        assert self._batches is not None
        if not self._step.ranks.is_first:
            self._step.ranks.barrier()  # until the first has ended, or its snapshot would be cut short
        path, remedy = None, "pass a run folder to save what reproduces it"
        if self.folder is not None:
            path = save_snapshot(self.folder / "nonfinite.safetensors", self._step, self._batches, batch)
            command = f"from firstpage.training import reproduce; print(reproduce({str(path)!r}).text())"
            remedy = f'python -c "{command}" repeats it'
        ids = self._batches.rows[batch.rows].tolist()
        paths = [self._batches.path(row) for row in ids[:2]]
        shown = ", ".join(map(str, ids[:4])) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")
        raise NonFiniteError(
            f"after step {batch.step}: NaN or infinity on images {shown} ({', '.join(paths)}, …): {remedy}; "
            "try a lower optimizer.lr, optimizer.clip=1.0 or train.precision='fp32'",
            batch.step,
            ids,
            path,
        )
