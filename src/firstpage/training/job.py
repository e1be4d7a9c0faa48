"""All the objects of a training run, built once and used by the loop."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from firstpage.data.catalog import Catalog
from firstpage.data.splits import QueryGallery
from firstpage.models.embedder import Embedder, Pixels
from firstpage.recipes.recipe import Recipe
from firstpage.runs.folder import RunFolder
from firstpage.training.batches import TrainBatches
from firstpage.training.health import CollapseDetector
from firstpage.training.nonfinite import NonFiniteGuard
from firstpage.training.optimizer import gradients, make_optimizer, set_lr, update_ema
from firstpage.training.ranks import Ranks
from firstpage.training.setup import TrainSetup
from firstpage.training.state import Stateful, TrainState
from firstpage.training.step import TrainStep
from firstpage.training.timer import StepTimer


@dataclass(eq=False)
class TrainJob:
    """The objects of a run.

    Attributes:
        recipe: All settings.
        catalog: The data set.
        setup: Its split, the sampler, the losses and memories.
        pixels: The stored pixels of the catalog.
        model: The model to train.
        final: The model that is evaluated and saved: the same, or the average of its weights.
        optimizer: Updates the model and the losses.
        batches: Gives the step its images.
        step: Computes losses and gradients.
        guard: Stops the run at NaN.
        detector: Warns of a collapse.
        timer: Measures the throughput.
        state: Everything a checkpoint holds.
        ranks: The processes of the run.

    >>> TrainJob.__name__
    'TrainJob'
    """

    recipe: Recipe
    catalog: Catalog
    setup: TrainSetup
    pixels: Pixels
    model: Embedder
    final: Embedder
    optimizer: torch.optim.Optimizer
    batches: TrainBatches
    step: TrainStep
    guard: NonFiniteGuard
    detector: CollapseDetector
    timer: StepTimer
    state: TrainState
    ranks: Ranks

    def __post_init__(self) -> None:
        self.steps = self.recipe.schedule.epochs * len(self.setup.sampler)
        self._backbone = [value for value in self.model.backbone.parameters() if value.requires_grad]
        self._weights = list(self.model.state_dict().values())
        self._averages = list(self.final.state_dict().values())

    def begin_epoch(self, epoch: int) -> None:
        """Set the model to training mode; the backbone is trained after `schedule.head_epochs`."""
        self.model.train()
        head_epochs = self.recipe.schedule.head_epochs
        for parameter in self._backbone:
            parameter.requires_grad_(epoch > head_epochs)
        if self.recipe.train.compile and 1 < epoch == head_epochs + 1:
            self.optimizer.zero_grad(set_to_none=True)
            torch.compiler.reset()  # torch 2.11 does not notice that parameters begin to be trained

    @property
    def lr(self) -> float:
        """Return the learning rate of the backbone in the current step."""
        lr: float = self.optimizer.param_groups[0]["lr"]
        return lr

    def begin_step(self) -> None:
        """Set the learning rates and clear the gradients."""
        set_lr(self.optimizer, self.recipe.schedule, self.state.step, self.steps)
        self.optimizer.zero_grad(set_to_none=True)

    def update(self, loss: Tensor, *, logged: bool) -> dict[str, Tensor]:
        """Update the weights by their gradients, and return the metrics of a step that is logged."""
        metrics, clip = {"loss": loss}, self.recipe.optimizer.clip
        if logged or clip:
            metrics["gradient_norm"] = nn.utils.get_total_norm(gradients(self.step.parameters))
        if clip:
            nn.utils.clip_grads_with_norm_(self.step.parameters, clip, metrics["gradient_norm"])
        self.guard.end(loss, gradients([*self.step.parameters, *self.setup.criteria.parameters()]))
        self.optimizer.step()
        if self.final is not self.model:
            update_ema(self._averages, self._weights, self.recipe.train.ema)
        self.state.step += 1
        return metrics

    def is_evaluation_due(self) -> bool:
        """Return whether the model is evaluated after this step."""
        settings = self.recipe.train
        interval = settings.evaluate_steps or settings.evaluate_every * len(self.setup.sampler)
        return self.state.step % interval == 0 or self.state.step == self.steps

    def evaluate(self, test: QueryGallery) -> dict[str, float]:
        """Return the metrics of a test."""
        self.ranks.broadcast_tensors(self.final.buffers())  # each rank has its own batch norm statistics
        return self.ranks.evaluate(self.final, self.pixels, self.catalog.labels, test, self.step.half)


def build_job(
    recipe: Recipe,
    catalog: Catalog,
    setup: TrainSetup,
    model: Embedder,
    pixels: Pixels,
    run: RunFolder,
    ranks: Ranks,
) -> TrainJob:
    """Build the objects of a run that has been prepared.

    >>> build_job.__name__
    'build_job'
    """
    device, criteria = model.device, setup.criteria
    half = device.type == "cuda" if recipe.train.half is None else recipe.train.half
    optimizer = make_optimizer(recipe.optimizer, model, criteria)
    final = copy.deepcopy(model) if recipe.train.ema else model
    detector, timer = CollapseDetector(), StepTimer(device)
    seed = recipe.train.seed
    batches = TrainBatches(catalog, setup.split.train, setup.labels, pixels, setup.augment, seed, device)
    step = TrainStep(recipe, model, criteria, setup.memories, half=half, ranks=ranks)
    guard = NonFiniteGuard(step, batches, device, run.path)
    guard.protect(optimizer)
    parts: dict[str, Stateful] = {
        "model": model,
        "loss": criteria,
        "optimizer": optimizer,
        "sampler": setup.sampler,
        "memories": nn.ModuleList(setup.memories),
        "collapse": detector,
        "timer": timer,
        "log": run,
    }
    if final is not model:
        parts["ema"] = final
    return TrainJob(
        recipe=recipe,
        catalog=catalog,
        setup=setup,
        pixels=pixels,
        model=model,
        final=final,
        optimizer=optimizer,
        batches=batches,
        step=step,
        guard=guard,
        detector=detector,
        timer=timer,
        state=TrainState(parts),
        ranks=ranks,
    )
