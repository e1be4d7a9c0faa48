"""What an index of many vectors costs: searching it beside FAISS, building it, changing it, and recall.

Run: PYTHONPATH=src python benchmarks/search.py                          (1,000,000 × 128, exact)
     ... --precision int8 --dims 64                                      (smaller vectors)
     ... --engine hnsw                                                   (or ivfpq; minutes of building)

Each index is built and changed in a process of its own, whose peak memory is printed. Searches are timed by
turns, FAISS's IndexFlatIP and the index, and the medians and their ratio printed.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from firstpage.data import Catalog
from firstpage.models import Embedder
from firstpage.search import Index


def vectors_file(path: Path, count: int, dim: int) -> None:
    """Unit vectors around 1,000 centers, written a block at a time."""
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((1000, dim), dtype=np.float32)
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (count, dim))
    for start in range(0, count, 2**16):
        rows = np.arange(start, min(start + 2**16, count))
        block = centers[rows % 1000] + 1.5 * draw.standard_normal((len(rows), dim), dtype=np.float32)
        vectors[start : start + len(rows)] = block / np.linalg.norm(block, axis=1, keepdims=True)
    vectors.flush()


def catalog(start: int, stop: int) -> Catalog:
    """Images that nobody opens, with a price."""
    paths = [f"shop/{number // 1000}/{number}.jpg" for number in range(start, stop)]
    prices = [str(number % 97) for number in range(start, stop)]
    classes = [f"class {number}" for number in range(1000)]
    labels = np.arange(start, stop) % 1000
    return Catalog("made", Path("/made"), paths, labels, classes, {}, columns={"price": prices})


def gibibytes() -> float:
    """The largest memory of this process so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def build(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Build an index of all but the last percent."""
    torch.manual_seed(0)
    model = Embedder.create(backbone="small", dim=options.dim, stored=32, crop=32)
    count = options.count * 99 // 100
    images, vectors = catalog(0, count), np.load(folder / "vectors.npy", mmap_mode="r")[:count]
    before, begin = gibibytes(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {"precision": options.precision, "dims": options.dims, "engine": options.engine}
        index = Index.build(folder / "index", model, images, vectors=vectors, progress=False, **settings)
    seconds = round(time.perf_counter() - begin, 2)
    about = {
        "seconds": seconds,
        "peak GiB": gibibytes(),
        "before GiB": before,
        "recall": index.manifest.recall,
    }
    return about | {"engine": index.manifest.neighbors.kind, "engine recall": index.manifest.neighbors.recall}


def grow(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Add the last percent, and remove as many."""
    count = options.count * 99 // 100
    images, vectors = catalog(count, options.count), np.load(folder / "vectors.npy", mmap_mode="r")[count:]
    begin = time.perf_counter()
    index = Index.open(folder / "index")
    opened = time.perf_counter()
    index = index.add(images, vectors=vectors, progress=False)
    added = time.perf_counter()
    index.remove(range(0, options.count, 100))
    removed = time.perf_counter()
    index = Index.open(folder / "index")
    again = time.perf_counter()
    index.search(ids=[1], where="price < 20 and label == 'class 5'")
    first = time.perf_counter()
    index.search(ids=[1], where="price < 20 and label == 'class 5'")
    second = time.perf_counter()
    times = {"open": opened - begin, "add 1 %": added - opened, "remove 1 %": removed - added}
    times |= {"first filtered search": first - again, "next filtered search": second - first}
    return {name: round(seconds, 3) for name, seconds in times.items()} | {"peak GiB": gibibytes()}


def alone(call: Callable[..., dict[str, object]], *arguments: object) -> dict[str, object]:
    """Run a call in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def main() -> None:
    """Print a table of each kind, as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--dims", type=int)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--engine", default="exact")
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--folder", help="for files; defaults to the system's temporary folder")
    options = parser.parse_args()
    print(json.dumps({"vectors": options.count, "dim": options.dim, "threads": torch.get_num_threads()}))
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folder = Path(place)
        vectors_file(folder / "vectors.npy", options.count, options.dim)
        built = alone(build, folder, options)
        print(json.dumps({"build": built}), flush=True)
        changed = alone(grow, folder, options)
        share = float(str(changed["add 1 %"])) / float(str(built["seconds"]))
        print(json.dumps({"change": changed, "add 1 % / build": round(share, 4)}), flush=True)
        search(folder, options)


def search(folder: Path, options: argparse.Namespace) -> None:
    """Time searches by turns."""
    import faiss

    vectors = np.load(folder / "vectors.npy")
    flat = faiss.IndexFlatIP(options.dim)
    flat.add(vectors)
    index = Index.open(folder / "index")
    for count in options.queries:
        queries = vectors[:: len(vectors) // count][:count] + np.float32(0.01)
        tensor = torch.from_numpy(queries)
        calls: dict[str, Callable[[], object]] = {
            "faiss": lambda queries=queries: flat.search(queries, 10),  # type: ignore[misc]
            "index": lambda tensor=tensor: index.search(tensor, 10),  # type: ignore[misc]
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(options.turns + 1):
            for name, call in calls.items():
                begin = time.perf_counter()
                call()
                if turn:  # the first one reads the files
                    times[name].append(time.perf_counter() - begin)
        median = {name: statistics.median(line) for name, line in times.items()}
        ratio = round(median["index"] / median["faiss"], 3)
        shown = {name: round(seconds, 4) for name, seconds in median.items()}
        print(json.dumps({"queries": count, "seconds": shown, "index / faiss": ratio}), flush=True)


if __name__ == "__main__":
    main()
