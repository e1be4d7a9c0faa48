"""How long a run will take, measured before it starts."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from firstpage.data.framing import Size, as_pair
from firstpage.models.embedder import Embedder
from firstpage.training.display import format_seconds
from firstpage.training.features import FeatureStore
from firstpage.training.job import TrainJob

PROBE = {"cuda": 0.1, "cpu": 1.0}  # seconds to measure for: passes on a GPU take equally long
SHORT = 2.0  # seconds of a pass that say little: where a core is busy, threads wait as long for each other
LONG = 600.0  # seconds on a CPU beyond which the line says what would be shorter
COMPILED = 0.5  # of the time of a training pass on a GPU, once the network is compiled


def estimate_duration(job: TrainJob) -> str:
    """Say how long a run will take on its device, from the time of a few passes, forward and backward.

    Weights, statistics and random generators are not changed. On many ranks the first one measures alone.

    Args:
        job: The run, before its first step.
    """
    recipe, device = job.recipe, job.model.device
    seconds = expected_seconds(job)
    steps = job.steps - job.state.step
    features = sum(job.pixels.missing.values()) if isinstance(job.pixels, FeatureStore) else 0
    evaluations = job.count_evaluations(job.steps) - len(job.state.history)
    threads = f" ({torch.get_num_threads()} threads)" if device.type == "cpu" else ""
    compiling = " and up to a minute to compile" if _is_compiled(job) and steps else ""
    size = " × ".join(str(side) for side in dict.fromkeys(as_pair(job.setup.augment.size)))
    processor = "GPU" if device.type == "cuda" else device.type.upper()
    line = (
        f"about {format_seconds(seconds)} on this {processor}{threads}{compiling}: "
        f"{f'features of {features:,} crops, ' if features else ''}"
        f"{steps:,} steps of {recipe.batch.images} images at {size} px, {evaluations} evaluations"
    )
    if device.type == "cpu" and seconds > LONG:
        smaller = "" if recipe.model.backbone == "small" else "model.backbone=small, "
        setting = "model.crop" if recipe.augment.size is None else "augment.size"
        shorter = "" if features else f"fewer schedule.epochs, half the {setting}, "
        line += f"; for less: {shorter}{smaller}or a GPU"
    return line


def expected_seconds(job: TrainJob) -> float:
    """Return how long the rest of a run will take, without losses and augmentation, which take little.

    Args:
        job: The run.
    """
    recipe, split, state, ranks = job.recipe, job.setup.split, job.state, job.ranks.world_size
    tested, trained = (_shape(size) for size in (job.model.preprocess.size, job.setup.augment.size))
    share = math.ceil((recipe.batch.images + job.setup.marked) / ranks)
    chunk = min(recipe.batch.chunk or share, share)
    steps = job.steps - state.step
    frozen = min(steps, max(0, recipe.schedule.head_epochs * len(job.setup.sampler) - state.step))

    preparing = 0.0
    if isinstance(job.pixels, FeatureStore):
        for size, crops in job.pixels.missing.items():
            preparing += crops * _seconds_per_image(job, _shape(size), job.model.batch_size())
        tested = trained = (job.pixels.width,)

    forwards = frozen + (steps if chunk < share else 0)  # chunks are embedded twice, the second time to learn
    training = forwards * _seconds_per_image(job, trained, chunk) if forwards else 0.0
    if steps > frozen:
        faster = COMPILED if _is_compiled(job) else 1.0
        training += (steps - frozen) * faster * _seconds_per_image(job, trained, chunk, backward=True)

    images = (job.count_evaluations(job.steps) - len(state.history)) * split.validation.size
    if split.test is not None and split.test is not split.validation:
        images += 2 * split.test.size
    evaluating = images / ranks * _seconds_per_image(job, tested, chunk) if images else 0.0
    return preparing + share * training + evaluating


def _shape(size: Size) -> tuple[int, ...]:
    return (3, *as_pair(size))


def _is_compiled(job: TrainJob) -> bool:
    return job.recipe.train.compile and job.model.device.type == "cuda"


def _seconds_per_image(job: TrainJob, shape: tuple[int, ...], most: int, *, backward: bool = False) -> float:
    """Return the seconds of an image, or of its features, of that shape in a pass of at most `most`."""
    model, device = job.model, job.model.device
    # A GPU gets what it will get in training: that fits, and what is prepared for the shape is used again.
    count = most if device.type == "cuda" else min(most, 8)
    # Batch norms that the ranks share would wait for ranks that do not measure.
    with _unchanged(model, training=backward and not job.recipe.train.sync_batch_norm):
        while True:
            images = torch.zeros(count, *shape, device=device)
            if images.ndim == 4:
                images = images.to(memory_format=torch.channels_last)
            seconds = [_pass_seconds(job, images, backward) for _ in range(2)]  # the first one warms up
            if min(seconds) > SHORT or count == most:
                break
            count = min(4 * count, most)  # a short pass says little on a busy machine
        while sum(seconds[1:]) < PROBE[device.type] and len(seconds) < 20:
            seconds.append(_pass_seconds(job, images, backward))
    return min(seconds) / count


@contextmanager
def _unchanged(model: Embedder, *, training: bool) -> Iterator[None]:
    """Set the mode of a model, and leave it as it was: mode, statistics, gradients, random generators."""
    before, mode = {name: value.clone() for name, value in model.named_buffers()}, model.training
    devices = [model.device] if model.device.type == "cuda" else []
    model.train(training)
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        model.train(mode)
        model.zero_grad(set_to_none=True)
        for name, value in model.named_buffers():
            value.copy_(before[name])


def _pass_seconds(job: TrainJob, images: Tensor, backward: bool) -> float:
    device, start = job.model.device, time.perf_counter()
    with (
        torch.set_grad_enabled(backward),
        torch.autocast(device.type, torch.bfloat16, enabled=job.step.half),
    ):
        levels = job.model.raw(images)
    if backward:
        torch.stack([level.float().sum() for level in levels]).sum().backward()  # type: ignore[no-untyped-call]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
