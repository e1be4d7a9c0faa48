"""What a benchmark beside its peers is made of: a case, and how its sides are timed, counted and compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

OURS = "firstpage"
PML = "pytorch-metric-learning"


@dataclass(frozen=True)
class Case:
    """One benchmark: the same work on the same inputs, done by the project and by its peers.

    `same` returns what the project and its first peer computed, to be compared; where their definitions
    differ it is None, and `note` says how.
    """

    name: str
    size: str
    sides: dict[str, Callable[[], object]]  # the project's first
    same: Callable[[], tuple[torch.Tensor, torch.Tensor]] | None = None
    note: str = ""
    tolerance: float = 1e-3


@dataclass(frozen=True)
class Options:
    """What the command asks for."""

    device: torch.device
    sizes: list[int]
    dim: int = 512
    per_class: int = 4
    seconds: float = 2.0
    clock: str = "wall"
    names: list[str] = field(default_factory=list)

    def wants(self, table: str, name: str) -> bool:
        """Whether a case was asked for, by its own name or its table's."""
        return not self.names or table in self.names or name in self.names or f"{table}/{name}" in self.names


def has(package: str) -> bool:
    """Whether a peer is installed, with all that it needs."""
    try:
        import_module(package)
    except ImportError:
        return False
    return True


def measure(case: Case, options: Options) -> dict[str, object]:
    """The figures of one case: each side's times by turns, operations and memory, and what was compared."""
    sides, failures = _able(case.sides)
    note = "; ".join(filter(None, [case.note, *failures]))
    row: dict[str, object] = {"name": case.name, "size": case.size, "note": note, "same": None}
    if case.same is not None and len(sides) > 1 and not failures:
        ours, theirs = (torch.as_tensor(value).detach().double().cpu() for value in case.same())
        error = float(((ours - theirs).abs() / theirs.abs().clamp_min(1e-6)).max())
        row["error"], row["same"] = float(f"{error:.2g}"), error < case.tolerance
    times = by_turns(sides, options)
    row["sides"] = {
        name: {
            "median": statistics.median(times[name]),
            "spread": spread(times[name]),
            "turns": len(times[name]),
            "operations": operations(call, options.device),
            "MiB": round(peak_memory(call, options.device), 1),
        }
        for name, call in sides.items()
    }
    return row


def _able(sides: dict[str, Callable[[], object]]) -> tuple[dict[str, Callable[[], object]], list[str]]:
    """The sides that can do the work, and why the others cannot; the first calls also load kernels."""
    able, failures = {}, []
    for name, call in sides.items():
        try:
            for _ in range(3):
                call()
            able[name] = call
        except RuntimeError as error:  # a peer that runs out of memory
            if name == OURS:
                raise
            failures.append(f"{name} fails: {str(error).splitlines()[0].partition('. GPU')[0]}")
            torch.cuda.empty_cache()
    return able, failures


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def by_turns(sides: dict[str, Callable[[], object]], options: Options) -> dict[str, list[float]]:
    """Seconds of every call. The sides take turns, so that what slows the machine slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    clock = time.process_time if options.clock == "processor" else time.perf_counter
    begin = time.perf_counter()
    turn = 0
    while turn < 3 or (turn < 101 and time.perf_counter() - begin < options.seconds):
        for name, call in sides.items():
            synchronize(options.device)
            start = clock()
            call()
            synchronize(options.device)
            times[name].append(clock() - start)
        turn += 1
    return times


def spread(seconds: list[float]) -> float:
    """Half the distance of the quartiles over the median: how far a typical turn is from it."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return (high - low) / 2 / middle


def operations(call: Callable[[], object], device: torch.device) -> int:
    """Kernels that a call launches on a GPU; on the CPU the operations of torch that compute something."""
    if device.type == "cuda":
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            call()
            torch.cuda.synchronize()
        on_device = torch.autograd.DeviceType.CUDA
        return sum(event.device_type == on_device for event in profile.events())
    with _Counter() as counter:
        call()
    return counter.count


_FREE = {  # of operations: what launches nothing
    *("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "scalar_tensor"),
    *("detach", "_unsafe_view", "_local_scalar_dense", "is_same_size", "promote_types"),
}


class _Counter(TorchDispatchMode):
    """Counts what would be a kernel: views and shapes are none."""

    count = 0

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        name = func.overloadpacket.__name__
        self.count += not (func.is_view or name in _FREE)
        return func(*args, **(kwargs or {}))


def peak_memory(call: Callable[[], object], device: torch.device) -> float:
    """MiB that a call needs more than there was before: of the allocator, or of the process on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return float("nan")
    reset.write_text("5")  # the high water mark becomes what is in use now
    before = _high_water()
    call()
    return (_high_water() - before) / 2**10


def _high_water() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
