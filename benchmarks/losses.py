"""Time and peak memory of one forward and backward pass of every loss, each in a fresh process.

    python benchmarks/losses.py [--images 4096] [--dim 512] [--per-class 4] [--device cpu] [NAME ...]

With `--compare`, also pytorch-metric-learning's where it has the same loss.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from firstpage import losses


def run_one(name: str, images: int, dim: int, per_class: int, device: str) -> dict[str, float]:
    """One loss: seconds of the best of three passes after a first, and the process's peak memory."""
    torch.manual_seed(0)
    labels = (torch.arange(images) // per_class).to(device)
    classes = images // per_class + 1
    centers = torch.randn(classes, dim)
    vectors = (centers[labels.cpu()] + 2 * torch.randn(images, dim)).to(device)
    embeddings = vectors.requires_grad_()
    loss = compared(name) if name.startswith("pml:") else create(name, classes, dim).to(device)
    base = memory(device)
    seconds = []
    for _ in range(2 if name == "struct-clust" else 4):
        embeddings.grad = None
        start = time.perf_counter()
        value = loss(embeddings, labels)
        value.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()
    return {"seconds": min(seconds[1:]), "peak_gib": memory(device), "base_gib": base, "loss": value.item()}


def create(name: str, classes: int, dim: int) -> torch.nn.Module:
    """The loss of that name, told what it needs to know of the data."""
    known = {"classes": classes, "dim": dim}
    return losses.create(name, **{key: known[key] for key in losses.required_arguments(name)})


def compared(name: str) -> torch.nn.Module:
    """The same loss from pytorch-metric-learning, with its miner where it needs one."""
    from pytorch_metric_learning import distances, miners
    from pytorch_metric_learning import losses as pml

    cosine = distances.CosineSimilarity()
    loss, miner = {
        "pml:triplet-semihard": (
            pml.TripletMarginLoss(0.1, distance=cosine),
            miners.TripletMarginMiner(0.1, "semihard"),
        ),
        "pml:triplet-hard": (pml.TripletMarginLoss(0.1, distance=cosine), miners.BatchHardMiner()),
        "pml:margin": (pml.MarginLoss(nu=0), miners.DistanceWeightedMiner()),
        "pml:batch-all": (pml.NTXentLoss(0.1), None),
        "pml:lifted": (pml.LiftedStructureLoss(), None),
        "pml:contrastive": (pml.ContrastiveLoss(), None),
        "pml:angular": (pml.AngularLoss(45), None),
        "pml:histogram": (pml.HistogramLoss(n_bins=100), None),
        "pml:rll": (pml.RankedListLoss(0.4, 10, alpha=1.2), None),
    }[name]

    class Mined(torch.nn.Module):
        def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            chosen = miner(embeddings, labels) if miner else None
            return loss(embeddings, labels, chosen) if chosen is not None else loss(embeddings, labels)

    return Mined()


def memory(device: str) -> float:
    """Peak memory so far in GiB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Run each named loss in a process of its own and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--per-class", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    settings = (options.images, options.dim, options.per_class, options.device)
    if options.one:
        print(json.dumps(run_one(options.names[0], *settings)))
        return
    names = options.names or losses.names()
    if options.compare:
        names = [
            *names,
            *(f"pml:{n}" for n in ("triplet-semihard", "triplet-hard", "margin", "batch-all", "lifted")),
        ]
        names += [f"pml:{n}" for n in ("contrastive", "angular", "histogram", "rll")]
    print(f"{options.images} images, {options.dim} dimensions, {options.per_class} a class, {options.device}")
    print(f"{'loss':22} {'seconds':>8} {'peak GiB':>9} {'value':>10}")
    for name in names:
        flags = [
            f"--{key}={value}"
            for key, value in zip(("images", "dim", "per-class", "device"), settings, strict=True)
        ]
        done = subprocess.run(
            [sys.executable, __file__, name, "--one", *flags], capture_output=True, text=True
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"killed ({done.returncode})"])[-1]
            print(f"{name:22} failed: {reason[:100]}", flush=True)
            continue
        figures = json.loads(done.stdout)
        print(
            f"{name:22} {figures['seconds']:8.3f} {figures['peak_gib']:9.2f} {figures['loss']:10.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
