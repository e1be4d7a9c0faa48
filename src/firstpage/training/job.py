"""The objects of a training run, and what the loop does with them."""

import copy
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from firstpage.data.catalog import Catalog
from firstpage.data.splits import QueryGallery
from firstpage.errors import UserError
from firstpage.models.components import component_rows, start_at_components
from firstpage.models.device import keep_freed_memory, use_half
from firstpage.models.embedder import Embedder, Pixels
from firstpage.recipes.recipe import Recipe
from firstpage.runs.folder import RunFolder
from firstpage.training.batches import TrainBatches
from firstpage.training.features import FeatureStore, uses_features
from firstpage.training.feedback import JoinedPixels
from firstpage.training.health import CollapseDetector
from firstpage.training.nonfinite import NonFiniteGuard
from firstpage.training.optimizer import gradients, make_optimizer, set_lr, update_ema
from firstpage.training.ranks import Ranks
from firstpage.training.setup import TrainSetup
from firstpage.training.state import TrainState
from firstpage.training.step import TrainStep
from firstpage.training.timer import StepTimer

MENDED = 2  # collapses that are mended before a run is stopped
SLOWER = 0.3  # times the learning rates after each


class TrainJob:
    """The objects of a run: built once, used by the loop in every step.

    Args:
        recipe: All settings.
        catalog: The dataset.
        setup: The data split, sampler, losses and memories.
        model: The model to train.
        pixels: The stored pixels of the catalog.
        run: The run folder.
        ranks: The processes of the run.
        cache: Folder of cached pixels, for features that are computed once.

    Attributes:
        pixels: The stored pixels, or the features of a backbone that is never trained.
        eval_model: The model that is evaluated and saved: the trained one, or the average of its weights.
        optimizer: Updates the model and the losses.
        batches: Gives the step its images.
        step: Computes losses and gradients.
        guard: Stops the run at NaN.
        detector: Warns of a collapse.
        timer: Measures the throughput.
        state: Everything a checkpoint holds.
        steps: Number of steps of the run.
    """

    def __init__(
        self,
        recipe: Recipe,
        catalog: Catalog,
        setup: TrainSetup,
        model: Embedder,
        pixels: Pixels,
        run: RunFolder,
        ranks: Ranks,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        if setup.marked and not isinstance(pixels, JoinedPixels):
            raise UserError("pixels: have no marked images: leave them out to train on marks")
        self.recipe, self.catalog, self.setup, self.pixels = recipe, catalog, setup, pixels
        self.model, self.ranks, device = model, ranks, model.device
        keep_freed_memory(device)
        self.eval_model = copy.deepcopy(model) if recipe.train.ema else model
        self.steps = recipe.schedule.epochs * len(setup.sampler)
        half = bool(ranks.broadcast(use_half(device, recipe.train.half)))  # all ranks as the first
        rows, seed = setup.rows, recipe.train.batch_seed
        if uses_features(recipe):
            self.pixels = FeatureStore(
                model, pixels, rows, setup.split.tested, setup.augment, seed=seed, half=half, cache=cache
            )
        self.batches = TrainBatches(catalog, rows, setup.labels, self.pixels, setup.augment, seed, device)
        self.step = TrainStep(
            recipe, model, setup.criteria, setup.memories, half=half, ranks=ranks, marked=setup.marked
        )
        self.optimizer = make_optimizer(recipe.optimizer, model, setup.criteria)
        self.guard = NonFiniteGuard(self.step, self.batches, device, run.path)
        self.guard.protect(self.optimizer)
        self.detector, self.timer = CollapseDetector(), StepTimer(device)
        parts = {
            "model": model,
            "loss": setup.criteria,
            "optimizer": self.optimizer,
            "sampler": setup.sampler,
            "memories": nn.ModuleList(setup.memories),
            "collapse": self.detector,
            "timer": self.timer,
            "log": run,
        }
        if self.eval_model is not model:
            parts["ema"] = self.eval_model
        self.state = TrainState(parts, recipe.train.select)
        self._backbone = [value for value in model.backbone.parameters() if value.requires_grad]
        # The tensors themselves, not copies: the optimizer and the average change them in place.
        self._weights, self._averages = ([*net.state_dict().values()] for net in (model, self.eval_model))

    def begin_epoch(self, epoch: int) -> None:
        """Set the model to training mode; the backbone is trained after `schedule.head_epochs`."""
        begun = self.state.step > (epoch - 1) * len(self.setup.sampler)
        if not begun and (epoch - 1) % self.recipe.train.survey_every == 0:  # a resumed epoch has had it
            self.survey()
        self.model.train()
        frozen = epoch <= self.recipe.schedule.head_epochs
        for parameter in self._backbone:
            parameter.requires_grad_(not frozen)
        self.step.is_frozen = frozen

    def preparations(self) -> Iterator[tuple[str, int, Callable[[Callable[[int], None]], None]]]:
        """Yield what is to be done before the first step, as its name, the number of images and a function.

        The function is called with what is told the numbers of images that are done. A run that was stopped
        in one does it again.
        """
        if isinstance(self.pixels, FeatureStore):
            yield "computing features", sum(self.pixels.missing.values()), self._fill
        if self.recipe.model.head == "pca" and not self.state.step and not self.state.history:
            rows = component_rows(self.setup.split.train, self.recipe.train.seed)
            yield "starting the head", len(rows), partial(self._start_head, rows)

    def _fill(self, advance: Callable[[int], None]) -> None:
        """Compute the features: the first rank before the others, which read its files if there are any."""
        for turn in (True, False):
            if self.ranks.is_first == turn:
                self.pixels.fill(advance)  # type: ignore[attr-defined]
            self.ranks.barrier()

    def _start_head(self, rows: NDArray[np.int64], advance: Callable[[int], None]) -> None:
        """Start the head at the principal components of some images; see `start_at_components`."""
        if self.ranks.is_first:
            start_at_components(self.model, self.pixels, rows, half=self.step.half, advance=advance)
        self.ranks.barrier()  # it may take longer than the others wait for a step
        started = self.model.heads.state_dict()
        self.ranks.broadcast_tensors(started.values())
        self.eval_model.heads.load_state_dict(started)
        self.state.keep(self.model)  # which a collapse before the first evaluation restores

    def survey(self) -> None:
        """Show all training images, embedded, to the sampler and the losses that ask for them.

        They do by a method `survey(vectors, labels)`, which gets unit vectors [N, D] and classes [N] on the
        device. What they make of them belongs to their state, and is the first rank's on all ranks.
        """
        sampler = getattr(
            self.setup.sampler, "sampler", self.setup.sampler
        )  # that of the images, not of marks
        asking: list[Any] = [
            part for part in (sampler, *self.setup.criteria.modules()) if hasattr(part, "survey")
        ]
        if not asking:
            return
        rows = self.setup.split.train
        self.ranks.broadcast_tensors(self.model.buffers())  # each rank has its own batch norm statistics
        vectors = self.ranks.embed(self.model, self.pixels, rows, self.step.half)
        for part in asking:
            part.survey(vectors, self.batches.labels[: len(rows)])
        self.ranks.broadcast_tensors(self.setup.criteria.buffers())
        self.setup.sampler.load_state_dict(self.ranks.broadcast(self.setup.sampler.state_dict()))

    @property
    def lr(self) -> float:
        """Return the learning rate of the backbone in the current step."""
        lr: float = self.optimizer.param_groups[0]["lr"]
        return lr

    def mend(self) -> str:
        """After a collapse: restore the best model so far, lower the learning rates, and say so.

        Raises:
            UserError: It has been mended before, in vain.
        """
        state, detector = self.state, self.detector
        if state.mended == MENDED:
            raise UserError(
                f"stopped: the run has collapsed {MENDED + 1} times, also at {SLOWER**MENDED:.0%} of its "
                "learning rates: use loss.score=log for topk, another loss, or model.standardize=true"
            )
        state.mended += 1
        restored = f"the model of epoch {state.best_epoch}" if state.best_epoch else "the untrained model"
        for model in {id(model): model for model in (self.model, self.eval_model)}.values():
            model.load_state_dict(state.best_weights)
        self.optimizer.state.clear()
        detector.in_a_row = 0
        detector.warnings.append(
            f"step {state.step}: mended: {restored} was restored, and goes on at "
            f"{SLOWER**state.mended:.0%} of the learning rates"
        )
        return detector.warnings[-1]

    def begin_step(self) -> None:
        """Set the learning rates and clear the gradients."""
        scale = SLOWER**self.state.mended
        set_lr(self.optimizer, self.recipe.schedule, self.state.step, self.steps, scale)
        self.optimizer.zero_grad(set_to_none=True)

    def update(self, loss: Tensor, *, logged: bool) -> dict[str, Tensor]:
        """Clip and check the gradients, update the weights, and return the metrics of a logged step."""
        metrics, clip = {"loss": loss}, self.recipe.optimizer.clip
        if logged or clip:
            metrics["gradient_norm"] = nn.utils.get_total_norm(gradients(self.step.parameters))
        if clip:
            nn.utils.clip_grads_with_norm_(self.step.parameters, clip, metrics["gradient_norm"])
        self.guard.end(loss, gradients([*self.step.parameters, *self.setup.criteria.parameters()]))
        self.optimizer.step()
        if self.eval_model is not self.model:
            update_ema(self._averages, self._weights, self.recipe.train.ema)
        self.state.step += 1
        return metrics

    def count_evaluations(self, step: int) -> int:
        """Return how many evaluations a run of that many steps has made."""
        settings = self.recipe.train
        interval = settings.evaluate_steps or settings.evaluate_every * len(self.setup.sampler)
        untrained = settings.evaluate_untrained or not self.steps
        last = step == self.steps and step % interval != 0
        return untrained + step // interval + last

    def is_evaluation_due(self) -> bool:
        """Return whether the model is to be evaluated before the next step."""
        return len(self.state.history) < self.count_evaluations(self.state.step)

    def is_out_of_patience(self) -> bool:
        """Return whether so many evaluations were no better that training ends here."""
        patience = self.recipe.train.patience
        return 0 < patience <= self.state.stale

    def evaluate(self, test: QueryGallery, advance: Callable[[int], None] | None = None) -> dict[str, float]:
        """Return the metrics of a retrieval test; `advance` is called with the numbers of embedded images."""
        self.ranks.broadcast_tensors(self.eval_model.buffers())  # each rank has its own batch norm statistics
        labels, half = self.catalog.labels, self.step.half
        return self.ranks.evaluate(self.eval_model, self.pixels, labels, test, half, advance)
