"""How long a run will take, measured before it starts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from firstpage.data.framing import as_pair
from firstpage.models.embedder import Embedder
from firstpage.training.display import format_seconds
from firstpage.training.job import TrainJob

PROBE = 1.0  # seconds to measure for, at least three passes
SHORT = 0.1  # seconds of a pass that are too few to count on
LONG = 600.0  # seconds on a CPU beyond which the line says what would be shorter
COMPILED = 0.5  # of the time on a GPU, once the network is compiled


def estimate_duration(job: TrainJob) -> str:
    """Say how long a run will take on its device, from the time of a few passes, forward and backward.

    Weights, statistics and random generators are not changed. Losses and augmentation are not measured: they
    take little beside the network.

    Args:
        job: The run, before its first step.
    """
    recipe, split, device, state = job.recipe, job.setup.split, job.model.device, job.state
    share = 1 / job.ranks.world_size
    compiled = recipe.train.compile and device.type == "cuda"
    forward = share * _seconds_per_image(job, training=False)
    steps, images = job.steps - state.step, recipe.batch.images
    frozen = min(steps, max(0, recipe.schedule.head_epochs * len(job.setup.sampler) - state.step))
    training = images * frozen * forward
    if steps > frozen:
        both = share * _seconds_per_image(job, training=True) * (COMPILED if compiled else 1)
        training += images * (steps - frozen) * (both + (forward if recipe.batch.chunk else 0))
    evaluations = job.count_evaluations(job.steps) - len(state.history)
    evaluating = evaluations * split.validation.size * forward
    if split.test is not None and split.test is not split.validation:
        evaluating += 2 * split.test.size * forward
    threads = f" ({torch.get_num_threads()} threads)" if device.type == "cpu" else ""
    size = " × ".join(str(side) for side in dict.fromkeys(as_pair(job.model.preprocess.size)))
    processor = "GPU" if device.type == "cuda" else device.type.upper()
    line = (
        f"about {format_seconds(training + evaluating)} on this {processor}{threads}"
        f"{' and up to a minute to compile' if compiled and steps else ''}: "
        f"{steps:,} steps of {images} images at {size} px, {evaluations} evaluations"
    )
    if device.type == "cpu" and training + evaluating > LONG:
        smaller = "" if recipe.model.backbone == "small" else "model.backbone=small, "
        line += f"; for less: fewer schedule.epochs, half the model.crop, {smaller}or a GPU"
    return line


def _seconds_per_image(job: TrainJob, *, training: bool) -> float:
    """Return the seconds of an image in a test, forward, or in training, forward and backward."""
    model, device = job.model, job.model.device
    test, train = model.preprocess.size, job.setup.augment.size
    shape = as_pair(train if training else test)
    most = job.recipe.batch.chunk or job.recipe.batch.images
    count = min(most, 64 if device.type == "cuda" else 8)
    with _unchanged(model):
        model.train(training)
        while True:
            images = torch.zeros(count, 3, *shape, device=device).to(memory_format=torch.channels_last)
            seconds = [_pass_seconds(job, images) for _ in range(3)]  # the first ones warm up
            if min(seconds) > SHORT or count == most:
                break
            count = min(4 * count, most)  # a short pass says little on a busy machine
        while sum(seconds) < PROBE and len(seconds) < 20:
            seconds.append(_pass_seconds(job, images))
    return min(seconds) / count


@contextmanager
def _unchanged(model: Embedder) -> Iterator[None]:
    """Leave a model as it was: its mode, its statistics, no gradients; and the random generators."""
    training = model.training
    before = {name: value.clone() for name, value in model.named_buffers()}
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        model.train(training)
        model.zero_grad(set_to_none=True)
        for name, value in model.named_buffers():
            value.copy_(before[name])


def _pass_seconds(job: TrainJob, images: torch.Tensor) -> float:
    model, device, start = job.model, job.model.device, time.perf_counter()
    with (
        torch.set_grad_enabled(model.training),
        torch.autocast(device.type, torch.bfloat16, enabled=job.step.half),
    ):
        levels = model.raw(images)
    if model.training:
        torch.stack([level.float().sum() for level in levels]).sum().backward()  # type: ignore[no-untyped-call]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
