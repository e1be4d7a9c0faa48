"""What evaluation costs: every retrieval metric beside the bare search, and clustering, in time and memory.

Run: PYTHONPATH=src python benchmarks/evaluation.py            (Online Products' test half, all of it)
     ... --queries 4096                                        (the same gallery, fewer queries)
     ... --gallery 1000000 --queries 10000 --classes 200000    (a large gallery)
     ... --cluster                                             (k-means and NMI too)

The bare search is the blocked product of unit vectors and its top 10: what any exact evaluation must do.
Memory is what the call adds to the embeddings it is given: the process's peak, or the GPU allocator's.
"""

import argparse
import resource
import time
from collections.abc import Callable

import torch
from torch import Tensor

from firstpage.evaluation import cluster, evaluate


def embeddings(images: int, classes: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Unit vectors around a center for each class, in shuffled order, made in place."""
    generator = torch.Generator(device).manual_seed(0)
    labels = torch.arange(images, device=device) * classes // images
    labels = labels[torch.randperm(images, generator=generator, device=device)]
    centers = torch.randn(classes, dim, generator=generator, device=device)
    vectors = torch.randn(images, dim, generator=generator, device=device).mul_(2)
    for rows in torch.arange(images, device=device).split(2**14):
        vectors[rows] += centers[labels[rows]]
        vectors[rows] /= vectors[rows].norm(dim=1, keepdim=True)
    return vectors, labels


def bare(queries: Tensor, gallery: Tensor, block: int) -> None:
    """The product and its top 10, a block of queries at a time."""
    for part in queries.split(block):
        (part @ gallery.T).topk(10, dim=1)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """How long a call takes, to its end on the device."""
    begin = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def peak(device: torch.device) -> int:
    """The largest memory so far, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Print the times, their ratio and the memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gallery", type=int, default=60_502)
    parser.add_argument("--queries", type=int)
    parser.add_argument("--classes", type=int, default=11_316)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cluster", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    vectors, labels = embeddings(options.gallery, options.classes, options.dim, device)
    asked = vectors[: options.queries], labels[: options.queries]
    searched = () if options.queries is None else (vectors, labels)
    size = f"{len(asked[0]):,} queries x {options.gallery:,} x {options.dim}"
    print(f"{size}, {options.classes:,} classes, {device}")
    if device.type == "cuda":  # the first call loads kernels
        evaluate(vectors[:2048], labels[:2048] % 7)
        bare(vectors[:1024], vectors, 1024)
    before = peak(device) if device.type == "cpu" else torch.cuda.memory_allocated()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    whole = seconds(lambda: print(evaluate(*asked, *searched).metrics()), device)
    print(f"evaluate {whole:8.2f} s, {(peak(device) - before) / 2**30:.2f} GiB more; ", end="")
    print(f"{peak(device) / 2**30:.2f} GiB in all")
    search = seconds(lambda: bare(asked[0], vectors, max(1, 2**26 // options.gallery)), device)
    print(f"bare     {search:8.2f} s; ratio {whole / search:.2f}")
    if options.cluster:
        took = seconds(lambda: print(cluster(vectors, labels).metrics()), device)
        print(f"cluster  {took:8.2f} s into {options.classes:,}")


if __name__ == "__main__":
    main()
