"""How long a run will take, measured before it starts."""

import time

import torch

from firstpage.data.framing import as_pair
from firstpage.training.display import format_seconds
from firstpage.training.job import TrainJob

BACKWARD = 2.0  # a backward pass costs about as much as two forward passes
PROBE = 1.0  # seconds to measure for, at least three passes
SHORT = 0.1  # seconds of a pass that are too few to count on
LONG = 600.0  # seconds on a CPU beyond which the line says what would be shorter


def estimate_duration(job: TrainJob) -> str:
    """Say how long a run will take on its device, from the time of a few forward passes.

    Weights, statistics and random generators are not changed. A compiled run is about twice as fast on a GPU.

    Args:
        job: The run, before its first step.
    """
    recipe, split, device = job.recipe, job.setup.split, job.model.device
    forward = _forward_seconds(job)
    steps, images = job.steps - job.state.step, recipe.batch.images
    passes = 1 + BACKWARD + (1 if recipe.batch.chunk else 0)
    evaluations = job.count_evaluations(job.steps) - len(job.state.history)
    training = steps * images * passes * forward / job.ranks.world_size
    evaluating = evaluations * split.validation.size * forward / job.ranks.world_size
    if split.test is not None and split.test is not split.validation:
        evaluating += 2 * split.test.size * forward / job.ranks.world_size
    threads = f" ({torch.get_num_threads()} threads)" if device.type == "cpu" else ""
    size = " × ".join(str(side) for side in dict.fromkeys(as_pair(job.model.preprocess.size)))
    processor = "GPU" if device.type == "cuda" else device.type.upper()
    line = (
        f"about {format_seconds(training + evaluating)} on this {processor}{threads}: "
        f"{steps:,} steps of {images} images at {size} px, {evaluations} evaluations"
    )
    if device.type == "cpu" and training + evaluating > LONG:
        smaller = "" if recipe.model.backbone == "small" else "model.backbone=small, "
        line += f"; for less: fewer schedule.epochs, half the model.crop, {smaller}or a GPU"
    return line


@torch.inference_mode()
def _forward_seconds(job: TrainJob) -> float:
    """Return the seconds of a forward pass per image."""
    model, device, shape = job.model, job.model.device, as_pair(job.model.preprocess.size)
    count = min(job.recipe.batch.images, 64 if device.type == "cuda" else 8)
    training = model.training
    model.eval()
    try:
        while True:
            images = torch.zeros(count, 3, *shape, device=device).to(memory_format=torch.channels_last)
            seconds = [_pass_seconds(job, images) for _ in range(3)]  # the first ones warm up
            if min(seconds) > SHORT or count == job.recipe.batch.images:
                break
            count = min(4 * count, job.recipe.batch.images)  # a short pass says little on a busy machine
        while sum(seconds) < PROBE and len(seconds) < 20:
            seconds.append(_pass_seconds(job, images))
    finally:
        model.train(training)
    return min(seconds) / count


def _pass_seconds(job: TrainJob, images: torch.Tensor) -> float:
    device, start = job.model.device, time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, enabled=job.step.half):
        job.model.raw(images)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
