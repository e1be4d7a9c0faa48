"""How long a run will take, measured before it starts."""

import time

import torch

from firstpage.data.framing import as_pair
from firstpage.training.display import format_seconds
from firstpage.training.job import TrainJob

BACKWARD = 2.0  # a backward pass costs about as much as two forward passes
PROBE = 1.0  # seconds to measure for, at least three passes
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
        line += "; for less: fewer schedule.epochs, half the model.crop, model.backbone=small, or a GPU"
    return line


@torch.inference_mode()
def _forward_seconds(job: TrainJob) -> float:
    """Return the seconds of a forward pass per image."""
    model, device, shape = job.model, job.model.device, as_pair(job.model.preprocess.size)
    count = min(job.recipe.batch.images, 64 if device.type == "cuda" else 8)
    images = torch.zeros(count, 3, *shape, device=device).to(memory_format=torch.channels_last)
    training = model.training
    model.eval()
    try:
        seconds: list[float] = []
        while len(seconds) < 3 or (sum(seconds) < PROBE and len(seconds) < 20):  # the first ones warm up
            start = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=job.step.half):
                model.raw(images)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
    finally:
        model.train(training)
    return min(seconds) / count
