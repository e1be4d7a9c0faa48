"""Cells that are trained on a Ray cluster, by an actor for each of its GPUs."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

import torch

from firstpage.compare.cell_trainer import CellTrainer
from firstpage.compare.cells import Cell
from firstpage.compare.workers import Measured, WorkerDiedError, Workers
from firstpage.data.catalog import Catalog
from firstpage.errors import UserError, one_line
from firstpage.search.ray_embedding import ray_cluster


class RayActors(Workers):
    """Actors on a Ray cluster, one for each of its GPUs, or for each core if there is none.

    The folders of the data, the cache and the results must be shared by all machines.

    Args:
        address: Of the cluster: `auto` for the one of this machine (it is started if there is none), or such
            as `ray://HOST:10001`.
        workers: The most actors. Defaults to as many as there are GPUs, or cores.
        catalog: The data.
        folder: Of the results.
        options: Of a `CellTrainer`.

    >>> import numpy as np
    >>> from pathlib import Path
    >>> catalog = Catalog("x", Path(), ["a.jpg"], np.zeros(1, int), ["a"], {})
    >>> with RayActors("auto", None, catalog, "results") as crew:  # doctest: +SKIP
    ...     list(crew.train([], None))
    []
    """

    def __init__(
        self,
        address: str,
        workers: int | None,
        catalog: Catalog,
        folder: str | os.PathLike[str],
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(1, catalog, folder, options)
        self._address, self._workers = address, workers
        self._options = options | {"catalog": catalog, "folder": folder, "progress": False}
        self._stack = ExitStack()
        self._ray: Any = None

    def __enter__(self) -> Self:
        self._ray = self._stack.enter_context(ray_cluster(self._address))
        resources = self._ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        most = gpus or max(1, int(resources.get("CPU", 1)))
        self._count = min(most, self._workers or most)
        self._options["device"] = "cuda" if gpus else "cpu"
        self._kind = self._ray.remote(**({"num_gpus": 1} if gpus else {"num_cpus": 1}))(_Actor)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self._idle, *(worker for worker, _ in self._busy.values())]:
            self._ray.kill(worker)
        self._stack.close()
        self._trainer.close()

    def _start(self, numbers: Sequence[int]) -> list[Any]:
        return [self._kind.remote(os.getcwd(), self._options) for _ in numbers]

    def _send(self, worker: Any, cell: Cell, seconds: float | None) -> Any:  # noqa: ANN401
        return worker.train.remote(cell, seconds)

    def _wait(self, pending: list[Any]) -> Any:  # noqa: ANN401
        [ready], _ = self._ray.wait(pending, num_returns=1)
        return ready

    def _receive(self, ready: Any, worker: Any) -> Measured | None:  # noqa: ANN401
        errors = self._ray.exceptions
        try:
            measured: Measured | None = self._ray.get(ready)
        except errors.RayTaskError as error:
            reason = f"--ray: a worker has failed ({one_line(error)})"
            raise UserError(f"{reason}: finished cells are kept; run it again to go on") from error
        except errors.RayActorError as error:
            raise WorkerDiedError(one_line(error)) from None
        return measured


class _Actor:
    """A worker on a Ray cluster."""

    def __init__(self, place: str, options: dict[str, Any]) -> None:
        os.chdir(place)  # paths in recipes may be relative
        if options["device"] == "cpu":
            torch.set_num_threads(1)  # there is an actor for each core
        self._trainer = CellTrainer(**options)

    def train(self, cell: Cell, seconds: float | None) -> Measured | None:
        return self._trainer.train(cell, seconds)
