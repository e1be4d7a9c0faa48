"""Kill a training run at random moments, run the same command again, and compare what comes of it.

One short run is left alone. Then runs of the same recipe are killed with SIGKILL, every third time while a
checkpoint is being written, and started again until they finish. Each must end in the same bytes: both
models, the log, and the result but for its times. With ranks, torchrun starts them, one of them or torchrun
itself is killed, and the whole job must end within a minute.

Run: PYTHONPATH=src python benchmarks/kill.py [--kills 30] [--seed 0] [--ranks 1] [--set batch.chunk=8 ...]
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

RECIPE = """
[model]
backbone = "small"
dim = 16
stored = 36
crop = 32
[loss]
name = "margin" # it has parameters of its own, and draws lots
classes = true
[batch]
size = 32
[memory]
size = 64
[augment]
crop = "random"
[optimizer]
lr = 3e-3
head = 1.0
[schedule]
epochs = 16
kind = "cosine"
[train]
ema = 0.9
evaluate_every = 3
checkpoint_every = 0.003 # minutes
"""


def main() -> None:
    """Kill until it was enough; exit code 1 if any run ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="section.key=value; repeatable")
    options = parser.parse_args()
    lots = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        draw(folder / "pictures")
        (folder / "short.toml").write_text(RECIPE)
        start(folder, "warm", options).join()  # its pixels are decoded then
        begin = time.perf_counter()
        unbroken = start(folder, "unbroken", options)
        unbroken.join()
        if unbroken.exitcode:
            sys.exit(f"the unbroken run ended with exit code {unbroken.exitcode}")
        seconds = time.perf_counter() - begin
        expected = contents(folder / "unbroken")
        print(f"unbroken: {seconds:.1f} s, {len(expected)} files, {digest(expected)}", flush=True)
        kills = inside = runs = wrong = 0
        while kills < options.kills:
            name = f"run-{runs}"
            runs += 1
            planned = lots.randint(1, 3)
            while True:
                begin, fresh = time.perf_counter(), not (folder / name).exists()
                process = start(folder, name, options)
                if planned and kills < options.kills:
                    wait(process, folder / name, lots.uniform(0, seconds), writing=kills % 3 == 2)
                    if process.is_alive():
                        kill(process, lots)
                        kills, planned = kills + 1, planned - 1
                        part = any(folder.joinpath(name).rglob("*.part"))
                        inside += part
                        where = "inside a write" if part else ""
                        print(f"  kill {kills:>3}: {name}, {steps(folder / name)} {where}", flush=True)
                        continue
                    if fresh:  # a whole run was quicker than was thought: kill sooner
                        seconds = min(seconds, time.perf_counter() - begin)
                process.join()
                if process.exitcode:
                    sys.exit(f"{name} ended with exit code {process.exitcode}")
                break
            found = contents(folder / name)
            differing = [path for path in {*expected, *found} if expected.get(path) != found.get(path)]
            wrong += bool(differing)
            print(f"{name}: {digest(found)} {'differs: ' + ', '.join(differing) if differing else 'equal'}")
    print(f"{kills} kills in {runs} runs, {inside} inside a write: {runs - wrong} of {runs} runs are equal")
    sys.exit(1 if wrong else 0)


def draw(folder: Path) -> None:
    """20 classes of noisy stripes, 8 images each."""
    noise = np.random.default_rng(0)
    down, across = np.mgrid[:36, :36]
    for label in range(20):
        angle = label * np.pi / 20
        (folder / f"{label:02d}").mkdir(parents=True)
        for number in range(8):
            wave = np.sin(0.6 * (down * np.sin(angle) + across * np.cos(angle)) + noise.uniform(0, 6))
            picture = 128 + 60 * wave[..., None] + noise.normal(0, 30, (36, 36, 3))
            image = Image.fromarray(picture.clip(0, 255).astype(np.uint8))
            image.save(folder / f"{label:02d}" / f"{number}.png")


def start(folder: Path, name: str, options: argparse.Namespace) -> multiprocessing.process.BaseProcess:
    """The command, in a process of its own; a server that has torch already makes it, to save time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["firstpage.training", "firstpage.cli"])
    process = context.Process(target=command, args=(folder, name, options))
    process.start()
    return process


def command(folder: Path, name: str, options: argparse.Namespace) -> None:
    """`firstpage train`, quietly; with ranks, this process becomes torchrun."""
    from firstpage import cli

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    out, data, cache = folder / name, folder / "pictures", folder / "cache"
    recipe = str(folder / "short.toml")
    train = ["train", recipe, f"--data={data}", f"--out={out}", f"--cache={cache}", "--device=cpu"]
    train += [f"--set={change}" for change in options.set]
    if options.ranks > 1:
        ranks = ["torch.distributed.run", "--standalone", f"--nproc_per_node={options.ranks}"]
        os.execv(sys.executable, [sys.executable, "-m", *ranks, "-m", "firstpage", *train])
    cli.main(train)


def kill(process: multiprocessing.process.BaseProcess, lots: random.Random) -> None:
    """Kill it, or one of the ranks it has started, and wait for the end of all."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    ranks = [int(rank) for rank in children.read_text().split()]
    os.kill(lots.choice([process.pid, *ranks]), signal.SIGKILL)
    process.join(60)
    if process.is_alive():
        sys.exit(f"a minute after one of {ranks} was killed the job goes on")


def wait(process: multiprocessing.process.BaseProcess, run: Path, seconds: float, writing: bool) -> None:
    """Until that time has passed, and then until a file is being written if asked for."""
    process.join(seconds)
    while writing and process.is_alive():
        if (run / "checkpoint").is_dir() and any(n.endswith(".part") for n in os.listdir(run / "checkpoint")):
            return


def contents(run: Path) -> dict[str, str]:
    """The digest of each file of a finished run that must not depend on the clock."""
    found = {}
    for path in sorted(run.rglob("*")):
        if path.is_file() and "events" not in path.parts:
            data = path.read_bytes()
            if path.name == "run.json":
                about = json.loads(data)
                del about["git"], about["result"]["seconds"], about["result"]["images_per_second"]
                data = json.dumps(about).encode()
            found[str(path.relative_to(run))] = hashlib.sha256(data).hexdigest()
    return found


def digest(found: dict[str, str]) -> str:
    """One short digest of all."""
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12]


def steps(run: Path) -> str:
    """How far a killed run came."""
    kept = sorted(run.glob("checkpoint/step-*.safetensors"))
    return f"checkpoint of step {int(kept[-1].stem[5:])}" if kept else "no checkpoint yet"


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # two threads would wait for one another on a busy machine
    main()
