"""What commands cost before they do anything, and a training step on a CPU, in seconds of processor time.

Processor time, of one thread, because a busy neighbor changes it less than the time on the wall; the least of
the rounds counts. To compare two versions, set PYTHONPATH to the `src` of each in turn.

    python benchmarks/startup.py [--rounds 3] [--steps 20]
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial

COMMANDS = (
    ["--version"],
    ["--help"],
    ["train", "--help"],
    ["list", "recipes"],
    ["list", "tables"],
    ["list", "data"],
    ["list", "losses"],
    ["list", "backbones"],
    ["list", "figures"],
    ["recipe", "glyphs"],
    ["recipe", "no-such-recipe"],
    ["train", "no-such-recipe"],
    ["train", "--data", "nowhere"],
    ["data", "check", "nowhere"],
    ["evaluate", "nowhere"],
    ["search", "nowhere", "query.jpg"],
)


def cost(arguments: list[str]) -> float:
    """Processor time of a command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "firstpage", *arguments], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def step_costs(steps: int, rounds: int) -> list[float]:
    """Processor time of a step of the demo's training, in each round."""
    import torch

    torch.set_num_threads(1)
    from firstpage import recipes
    from firstpage.data import PixelStore, read
    from firstpage.models import Embedder
    from firstpage.runs.folder import RunFolder
    from firstpage.training.job import TrainJob
    from firstpage.training.ranks import Ranks
    from firstpage.training.setup import prepare

    recipe, catalog = recipes.find("glyphs"), read("glyphs")
    torch.manual_seed(0)
    model = Embedder(recipe.model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    costs = []
    with tempfile.TemporaryDirectory() as cache, RunFolder(None) as run:
        pixels = PixelStore.build(catalog, cache, size=model.framing.size, progress=False)
        setup = prepare(recipe, catalog, pixels.ok, model)
        job = TrainJob(recipe, catalog, setup, model, pixels, run, Ranks())
        job.begin_epoch(1)
        plan = [rows for rows, _ in zip(setup.sampler, range(steps), strict=False)]
        for _ in range(rounds + 1):  # the first one warms up
            begin = time.process_time()
            for number, rows in enumerate(plan):
                job.guard.begin(number, rows)
                labels, ids = job.batches.targets(rows)
                job.begin_step()
                load = partial(job.batches.images, rows, number)
                job.update(job.step(load, labels, ids, number, check=job.guard.expect_finite), logged=False)
                job.guard.check()
            costs.append((time.process_time() - begin) / len(plan))
    return costs[1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="of training in a round; 0 for none")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for arguments in COMMANDS:
        least = min(cost(arguments) for _ in range(options.rounds))
        print(f"{least:6.2f} s   firstpage {' '.join(arguments)}", flush=True)
    if options.steps:
        print(f"{1e3 * min(step_costs(options.steps, options.rounds)):6.0f} ms  a step of the demo")


if __name__ == "__main__":
    main()
