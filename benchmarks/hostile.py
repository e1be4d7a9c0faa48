"""Attack firstpage with what a stranger may hand to it, and count what does not hold.

Mutated, truncated and crafted images, tables, folders, configs, models, embeddings, pixel stores and indexes;
writers of one file at once; a lying server; a full disk; and kills of every command that writes. A failure is
any exception but UserError and OSError, a traceback or a control character on the terminal, an end by a
signal, a hang over 20 s, half a file, an index that is neither the old nor the new one, more memory than
documented, and damage that is used in silence. The inputs run in two processes that have everything imported;
each input draws its lots from the seed, its kind and its number, so that one can be repeated alone: `--only
images:17`.

Run: PYTHONPATH=src python benchmarks/hostile.py [--inputs 10000] [--kills 200] [--seed 0] [--only KIND ...]
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # of forks, they would wait for one another
    os.environ[threads] = "1"

import kill  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402 - as the first optimizer would, for seconds, in every fork
from attacks import HANG, Fault, Place, die_with_parent, forked, images, indexes, saved, tables, writing  # noqa: E402

from firstpage import cli, report, training  # noqa: E402, F401 - imported before any fork
from firstpage.data import PixelStore, decode, read  # noqa: E402
from firstpage.data.progress import progress_bar  # noqa: E402

# Kinds of attack, and what share of the inputs each gets.
KINDS: dict[str, tuple[float, Callable[[Place], None]]] = {
    "images": (0.56, images.images),
    "cut": (0.04, images.cut),
    "tables": (0.1, tables.tables),
    "folders": (0.01, tables.folders),
    "configs": (0.12, saved.configs),
    "models": (0.06, saved.models),
    "npz": (0.05, saved.npz),
    "stores": (0.04, saved.stores),
    "writers": (0.006, writing.writers),
    "downloads": (0.008, writing.downloads),
    "full-disk": (0.006, writing.full_disk),
    "index-damage": (0.01, indexes.damage),
    "index-full-disk": (0.003, indexes.full_disk),
    "kills": (0.0, writing.kills),
    "index-kills": (0.0, indexes.kills),
}
MEMORY = decode.MAX_BYTES  # documented, of one image
SLACK = 2**26  # bytes: imports, and what is not of the image
GRACE = 5.0  # seconds: a worker kills what it has forked itself
SHOWN = 5  # failures of each kind


def main(arguments: list[str] | None = None) -> int:
    """Attack, print how often each kind was tried and failed; return 1 if any failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="KIND", help="KIND, or KIND:NUMBER to repeat one"
    )
    parser.add_argument("--keep", type=Path, help="keep the inputs that failed in this folder")
    parser.add_argument("--json", type=Path, help="write the counts and all failures to this file")
    options = parser.parse_args(arguments)
    if wrong := [name for name in options.only if name.partition(":")[0] not in KINDS]:
        parser.error(f"--only: no kind {wrong[0]!r}; the kinds are {', '.join(KINDS)}")
    jobs, begin = plan(options), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hostile-") as scratch:
        base = Path(scratch, "base")
        forked(lambda: prepare(base), codes=(0,), limit=writing.LONG)
        if any(kind.startswith("index-") for kind, _ in jobs):
            indexes.prepare(base)
        failures = attack_all(jobs, base, options.seed, options.keep)
    tried = {kind: sum(job[0] == kind for job in jobs) for kind in KINDS}
    print(f"{'kind':<16}{'tried':>8}{'failed':>8}")
    for kind in filter(tried.get, KINDS):
        print(f"{kind:<16}{tried[kind]:>8,}{len(failures[kind]):>8,}")
        for index, problem in sorted(failures[kind].items())[:SHOWN]:
            print(f"    --seed {options.seed} --only {kind}:{index}  {problem}")
    failed = sum(map(len, failures.values()))
    print(f"{len(jobs):,} tried, {failed:,} failed, {time.monotonic() - begin:.0f} s")
    if options.json:
        found = {kind: {"tried": tried[kind], "failed": failures[kind]} for kind in KINDS}
        options.json.write_text(json.dumps({"seed": options.seed, "kinds": found}, indent=1))
    return 1 if failed else 0


def plan(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return the kind and the number of each attack."""
    kinds = {name.partition(":")[0] for name in options.only} or {*KINDS}
    whole = sum(KINDS[kind][0] for kind in kinds)
    jobs = []
    for kind in filter(kinds.__contains__, KINDS):
        share = KINDS[kind][0]
        count = max(1, round(options.inputs * share / whole)) if share else options.kills
        numbers = [int(name.partition(":")[2]) for name in options.only if name.startswith(f"{kind}:")]
        jobs += [(kind, number) for number in numbers or range(count)]
    return jobs


def prepare(base: Path) -> None:
    """Make the sound samples: images, a run, embeddings and a pixel store."""
    os.environ["FIRSTPAGE_CACHE"] = str(base / "cache")
    kill.draw(base / "pictures")
    for folder in sorted((base / "pictures").iterdir())[::5]:
        shutil.copytree(folder, base / "few" / folder.name)
    recipe = kill.RECIPE.replace("epochs = 16", "epochs = 2")
    (base / "short.toml").write_text(recipe)
    pictures, run = str(base / "pictures"), str(base / "run")
    for command in (
        ["train", str(base / "short.toml"), "--data", pictures, "--out", run, "--device=cpu"],
        ["embed", run, pictures, str(base / "x.npz"), "--device=cpu"],
    ):
        with suppress(SystemExit):
            cli.main(command)
    PixelStore.build(read(base / "few"), base / "stores", size=36, progress=False)


def attempt(place: Place) -> str | None:
    """Attack once; return what did not hold, or None."""
    place.folder.mkdir(parents=True)
    reset_peak()
    before = memory("VmRSS")
    try:
        KINDS[place.kind][1](place)
    except Fault as fault:
        return str(fault)
    except BaseException as error:  # a worker must say even of an exit what ended it
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:200]
        return f"{type(error).__name__}: {text} ({Path(frame.filename).name}:{frame.lineno})"
    if (grown := memory("VmHWM") - before) > MEMORY + SLACK:
        return f"{grown / 1e9:.1f} GB of memory; documented are {MEMORY / 1e9:.1f} GB"
    return None


def memory(name: str) -> int:
    """Return a size of this process in bytes: VmRSS is that of now, VmHWM its peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def reset_peak() -> None:
    """Let VmHWM begin anew, where the system allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class Worker:
    """A process that attacks, one input after the other, in a process group of its own."""

    def __init__(self, base: Path, seed: int, keep: Path | None) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, base, seed, keep))
        self.process.start()
        other.close()
        self.job, self.deadline = ("", 0), 0.0

    def give(self, job: tuple[str, int]) -> None:
        """Begin an attack."""
        self.job, self.deadline = job, time.monotonic() + HANG + GRACE
        self.connection.send(job)

    def stop(self) -> None:
        """Kill the process and all it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.join()


def serve(connection: Connection, base: Path, seed: int, keep: Path | None) -> None:
    """Attack what comes, and answer with what did not hold. Workers run this."""
    os.setpgid(0, 0)
    die_with_parent()
    os.environ["FIRSTPAGE_CACHE"] = str(base / "cache")
    torch.set_num_threads(1)
    room = memory("VmSize") + 8 * 2**30  # enough for a fault to show, not for one to stop the machine
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff and libjpeg complain of every mutation
    network: list[str] = []

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "socket.getaddrinfo" and arguments[0] != "127.0.0.1":
            network.append(str(arguments[0]))

    sys.addaudithook(watch)
    with suppress(EOFError):
        while True:
            kind, index = connection.recv()
            folder = base.parent / f"{kind}-{index}"
            problem = attempt(Place(kind, index, seed, base, folder, connection.send))
            if problem is None and network:
                problem = f"asks the network for {network}"
            network.clear()
            if problem and keep:
                shutil.copytree(folder, keep / folder.name, symlinks=True, ignore=special, dirs_exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            connection.send(problem)


def special(folder: str, names: list[str]) -> list[str]:
    """Name what cannot be kept: FIFOs, and files that are larger than the disk."""
    paths = {name: Path(folder, name) for name in names}
    return [
        name
        for name, path in paths.items()
        if path.is_fifo() or (path.is_file() and path.stat().st_size > 2**30)
    ]


def attack_all(
    jobs: list[tuple[str, int]], base: Path, seed: int, keep: Path | None
) -> dict[str, dict[int, str]]:
    """Attack in two workers; return what did not hold, by kind and number."""
    failures: dict[str, dict[int, str]] = {kind: {} for kind in KINDS}
    waiting = deque(jobs)
    busy: list[Worker] = []
    idle = [Worker(base, seed, keep) for _ in range(2)]
    with progress_bar("attacking", len(jobs), True) as advance:
        while waiting or busy:
            while waiting and idle:
                busy.append(idle.pop())
                busy[-1].give(waiting.popleft())
            ready = wait([worker.connection for worker in busy], 0.5)
            for worker in list(busy):
                problem, late = None, time.monotonic() > worker.deadline
                if worker.connection not in ready and not late:
                    continue
                try:
                    problem = (
                        worker.connection.recv() if worker.connection in ready else f"hangs over {HANG:.0f} s"
                    )
                except (EOFError, ConnectionError):
                    worker.process.join()
                    problem = f"the process dies: exit code {worker.process.exitcode}"
                if isinstance(problem, float):  # a part is done; the next may take so long
                    worker.deadline = time.monotonic() + problem + GRACE
                    continue
                busy.remove(worker)
                if problem is not None:
                    failures[worker.job[0]][worker.job[1]] = problem
                    worker.stop()  # a fresh one has no peak of memory, and no state that the input left
                    worker = Worker(base, seed, keep)
                idle.append(worker)
                advance(1)
    for worker in idle:
        worker.stop()
    return failures


if __name__ == "__main__":
    sys.exit(main())
