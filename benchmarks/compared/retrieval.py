"""Evaluation beside pytorch-metric-learning's calculator, and search beside FAISS and scikit-learn."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from compared import OURS, PML, Case, Options, has
from firstpage.evaluation import evaluate

SETS = {"cub": (5_924, 100), "cars": (8_131, 98), "online-products": (60_502, 11_316)}  # images, classes


def evaluation_cases(options: Options) -> Iterator[Case]:
    """Every metric of the test half of a data set, embeddings of 512 dimensions."""
    for name, (images, classes) in SETS.items():
        if options.wants("evaluation", name):
            yield _evaluation(name, images, classes, options)


def _evaluation(name: str, images: int, classes: int, options: Options) -> Case:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) * classes // images
    vectors = torch.randn(classes, options.dim, generator=generator)[labels]
    vectors = vectors + 3 * torch.randn(images, options.dim, generator=generator)
    vectors, labels = torch.nn.functional.normalize(vectors).to(options.device), labels.to(options.device)

    def ours() -> dict[str, float]:
        return evaluate(vectors, labels).metrics()

    sides: dict[str, Callable[[], object]] = {OURS: ours}
    same, note = (
        None,
        "they compute P@1, P@R, MAP@R, of the whole ranking also mAP; here also P@k, R@k, MRR, AUC",
    )
    large = name == "online-products" and options.device.type == "cpu"
    if has("pytorch_metric_learning.utils.accuracy_calculator") and not large:
        from pytorch_metric_learning.distances import CosineSimilarity
        from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
        from pytorch_metric_learning.utils.inference import CustomKNN

        metrics = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
        search = None if has("faiss") else CustomKNN(CosineSimilarity())
        calculator = AccuracyCalculator(include=metrics, k="max_bin_count", knn_func=search)

        def theirs() -> dict[str, float]:
            found: dict[str, float] = calculator.get_accuracy(vectors, labels)
            return found

        def compare() -> tuple[Tensor, Tensor]:
            mine, other = ours(), theirs()
            figures = [mine[key] / 100 for key in ("P@1", "P@R", "MAP@R")]
            return torch.tensor(figures), torch.tensor([float(other[key]) for key in metrics])

        sides[PML], same = theirs, compare
        if name == "cub":  # elsewhere it takes minutes
            whole = AccuracyCalculator(include=(*metrics, "mean_average_precision"), k=None, knn_func=search)
            sides[f"{PML}, whole ranking"] = lambda: whole.get_accuracy(vectors, labels)
    return Case(name, f"{images:,} × {options.dim}", sides, same, note)


def search_cases(options: Options, count: int = 100_000, dim: int = 128) -> Iterator[Case]:
    """Ten nearest of 100,000 vectors, for one query and for many, from an index that is open."""
    if options.device.type != "cpu" or not options.wants("search", "exact"):
        return
    import numpy as np

    from firstpage.models import Embedder
    from firstpage.search import Index
    from search import catalog, vectors_file

    with tempfile.TemporaryDirectory() as place:
        vectors_file(Path(place) / "vectors.npy", count, dim)
        vectors = np.load(Path(place) / "vectors.npy")
        torch.manual_seed(0)
        model = Embedder.create(backbone="small", dim=dim, stored=32, crop=32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            built = Path(place) / "index"
            index = Index.build(
                built, model, catalog(0, count), vectors=vectors, progress=False, engine="exact"
            )
        peers = _engines(vectors)
        for asked in (1, 16, 256):
            queries = np.ascontiguousarray(vectors[:: count // asked][:asked] + np.float32(0.01))
            queries /= np.linalg.norm(queries, axis=1, keepdims=True)
            tensor = torch.from_numpy(queries)
            sides: dict[str, Callable[[], object]] = {
                OURS: lambda tensor=tensor: index.search(tensor, 10)  # type: ignore[misc]
            }
            for name, find in peers.items():
                sides[name] = lambda find=find, queries=queries: find(queries)  # type: ignore[misc]
            first = next(iter(peers.values()), None)

            def same(tensor=tensor, queries=queries, first=first) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]  # noqa: ANN001
                ours = torch.tensor([[one.id for one in line] for line in index.search(tensor, 10)])
                return ours, torch.from_numpy(first(queries))

            yield Case("exact", f"{asked} of {count:,} × {dim}", sides, same if first else None)


def _engines(vectors) -> dict[str, Callable]:  # type: ignore[no-untyped-def,type-arg]  # noqa: ANN001
    """What finds the ten nearest elsewhere."""
    found = {}
    if has("faiss"):
        import faiss

        flat = faiss.IndexFlatIP(vectors.shape[1])
        flat.add(vectors)
        found["FAISS"] = lambda queries: flat.search(queries, 10)[1]
    if has("sklearn"):
        from sklearn.neighbors import NearestNeighbors

        brute = NearestNeighbors(n_neighbors=10, algorithm="brute", metric="cosine").fit(vectors)
        found["scikit-learn"] = lambda queries: brute.kneighbors(queries, return_distance=False)
    return found
