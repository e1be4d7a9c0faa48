"""The project beside its peers: the same work on the same inputs in one process, by turns.

    python benchmarks/run.py [--device cuda] [--only NAME ...] [--sizes 128 512 2048] [--out FOLDER]
    python benchmarks/run.py --render          (only write RESULTS.md again from the JSON files)

NAME is a table (losses, mining, sampling, evaluation, search) or a row of one (margin). Times are medians of
turns, with how far a typical turn is from them. Before the timing both sides' results are compared; where
definitions differ, the table says how. Figures go to results-DEVICE.json, and those of all devices to
RESULTS.md. With --only, the other rows of a file of the same machine are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from compared import OURS, Case, Options, measure
from threadpoolctl import threadpool_limits

HERE = Path(__file__).parent
PACKAGES = ("torch", "pytorch-metric-learning", "faiss-cpu", "scikit-learn", "numpy")


TABLES = {  # where the cases of a table come from
    "losses": ("losses", "cases"),
    "mining": ("mining", "cases"),
    "sampling": ("sampling", "cases"),
    "evaluation": ("retrieval", "evaluation_cases"),
    "search": ("retrieval", "search_cases"),
}


def cases_of(table: str, options: Options) -> Iterator[Case]:
    """The cases of a table; none, with a line that says so, where a package for it is missing."""
    module, name = TABLES[table]
    try:
        cases: Callable[[Options], Iterator[Case]] = getattr(import_module(f"compared.{module}"), name)
        yield from cases(options)
    except ImportError as error:
        print(f"{table:10} left out: {error}", flush=True)


def about(options: Options) -> dict[str, object]:
    """The machine and the versions."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    cuda = options.device.type == "cuda"
    hardware = torch.cuda.get_device_name() if cuda else _processor()
    about = {"hardware": hardware, "threads": torch.get_num_threads(), "clock": options.clock}
    return about | {"python": platform.python_version(), "versions": found}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def run(options: Options, out: Path) -> int:
    """Measure what was asked for; the number of cases whose sides did not compute the same."""
    file = out / f"results-{options.device.type}.json"
    machine = about(options)
    kept = json.loads(file.read_text()) if file.exists() else {}
    rows = kept.get("rows", {}) if kept.get("machine") == machine and options.names else {}
    wrong = 0
    for table in TABLES:
        for case in cases_of(table, options):
            row = measure(case, options)
            rows.setdefault(table, {})[f"{case.name} {case.size}"] = row
            wrong += row["same"] is False
            print(f"{table:10} {_line(row)}", flush=True)
            file.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1, ensure_ascii=False))
    return wrong


def _line(row: dict) -> str:  # type: ignore[type-arg]
    sides = row["sides"]
    parts = [
        f"{name} {_time(side['median'])} ±{side['spread']:.0%} {side['operations']} ops, {side['MiB']} MiB"
        for name, side in sides.items()
    ]
    ratios = "".join(f"  ×{ratio:.2f}" for ratio in _ratios(row).values())
    return f"{row['name']:20} {row['size']:12} {'; '.join(parts)}{ratios}  {_agreement(row)}"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _ratios(row: dict) -> dict[str, float]:  # type: ignore[type-arg]
    """How many times as long each peer takes."""
    ours = row["sides"][OURS]["median"]
    return {name: side["median"] / ours for name, side in row["sides"].items() if not name.startswith(OURS)}


def _agreement(row: dict) -> str:  # type: ignore[type-arg]
    if row["same"] is None:
        return str(row["note"])
    verdict = f"same to {row['error']:.0e}" if row["same"] else f"**differs by {row['error']:.0e}**"
    return f"{verdict}; {row['note']}".removesuffix("; ").removesuffix("; pairs")


def render(out: Path) -> str:
    """RESULTS.md: a table for each kind and device."""
    text = ["# Beside its peers\n"]
    text.append(
        "Written by `make bench` (`python benchmarks/run.py --device cuda` on a GPU). Both sides run in one "
        "process on the same inputs and take turns; times are medians, ± half the distance of the quartiles. "
        "A ratio above 1 is in favor of firstpage. Operations are kernels on a GPU, and on the CPU what "
        "torch computes: operations but views. Memory is what a call needs more than there was before it.\n"
    )
    for file in sorted(out.glob("results-*.json")):
        found = json.loads(file.read_text())
        machine = found["machine"]
        versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
        text.append(f"## {machine['hardware']}\n")
        clock = "processor time; " if machine["clock"] == "processor" else ""
        text.append(f"{machine['threads']} threads; {clock}Python {machine['python']}, {versions}.\n")
        for table, rows in found["rows"].items():
            text += _table(table, list(rows.values()))
    return "\n".join(text)


def _table(table: str, rows: list[dict]) -> list[str]:  # type: ignore[type-arg]
    names = [row["name"] for row in rows]
    rows = sorted(
        rows, key=lambda row: names.index(row["name"])
    )  # what was measured later stands with its name
    text = [f"### {table.capitalize()}\n"]
    ratios = [ratio for row in rows for ratio in list(_ratios(row).values())[:1]]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        slower = sum(ratio < 1 for ratio in ratios)
        text.append(f"Geometric mean of {len(ratios)} ratios: ×{mean:.1f}; slower than the peer: {slower}.\n")
    text.append("| name | size | firstpage | ops | MiB | other | ratio | ops | MiB | compared |")
    text.append("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        sides, by = row["sides"], _ratios(row)
        ours = sides[OURS]
        first = f"| {row['name']} | {row['size']} | {_shown(ours)} | {ours['operations']} | {ours['MiB']} |"
        others = [name for name in sides if name != OURS] or [""]
        for name in others:
            if not name:
                rest = " | | | |"
            else:
                side = sides[name]
                ratio = f"×{by[name]:.1f}" if name in by else ""
                ratio = f"**{ratio}**" if by.get(name, 1) < 1 else ratio
                rest = f" {name} {_shown(side)} | {ratio} | {side['operations']} | {side['MiB']} |"
            text.append(f"{first}{rest} {_agreement(row)} |")
    return [*text, ""]


def _shown(side: dict) -> str:  # type: ignore[type-arg]
    return f"{_time(side['median'])} ± {side['spread']:.0%}"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--sizes", nargs="+", type=int, default=[128, 512, 2048], help="images in a batch")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--per-class", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long a case takes turns")
    parser.add_argument("--threads", type=int, help="on the CPU; all by default")
    parser.add_argument(
        "--clock", choices=("wall", "processor"), default="wall", help="processor: others compute too"
    )
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--render", action="store_true")
    given = parser.parse_args()
    device = torch.device(given.device)
    if given.threads:
        torch.set_num_threads(given.threads)
        with suppress(ImportError):
            import faiss  # noqa: F401 - whose threads are limited only if it is there
        threadpool_limits(given.threads)  # those of NumPy and FAISS
    warnings.filterwarnings("ignore", module="pytorch_metric_learning")
    sizes = given.sizes, given.dim, given.per_class
    options = Options(device, *sizes, given.seconds, given.clock, given.only)
    given.out.mkdir(parents=True, exist_ok=True)
    wrong = 0 if given.render else run(options, given.out)
    (given.out / "RESULTS.md").write_text(render(given.out))
    print(f"wrote {os.path.relpath(given.out / 'RESULTS.md')}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
