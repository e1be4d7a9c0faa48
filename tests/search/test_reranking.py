"""Results in the order of a learned similarity: that of the oracle, and only where it was asked for."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from firstpage import cli
from firstpage.data import Catalog
from firstpage.models import Embedder
from firstpage.search import Index
from support.system_oracles import pair_similarity

IMAGES, DIM = 30, 6


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """An index with the vectors of images that need not be there, but for the first."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("indexed")
    model = Embedder.create(backbone="small", dim=DIM, stored=48, rerank=True)
    for name, parameter in model.pair_similarity.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.constant_(parameter, 0.5)  # no layer is dead
    vectors = torch.nn.functional.normalize(torch.randn(IMAGES, DIM))
    paths = [f"{row}.png" for row in range(IMAGES)]
    for path in paths:
        Image.new("RGB", (50, 50)).save(folder / path)
    catalog = Catalog("toy", folder, paths, np.arange(IMAGES) % 3, ["a", "b", "c"], {})
    index = Index.build(folder / "index", model, catalog, vectors=vectors.numpy(), progress=False)
    return index, vectors, model, catalog


def wanted(model, query, vectors, count):
    """The rows nearest by cosine, the first `count` of them ordered by the oracle's similarity."""
    order = (vectors @ query).argsort(descending=True).tolist()
    weights = model.pair_similarity.state_dict()
    score = {row: pair_similarity(query.double(), vectors[row].double(), weights).item() for row in order}
    return sorted(order[:count], key=lambda row: -score[row]) + order[count:]


@pytest.mark.parametrize(("k", "count"), [(5, 12), (12, 5), (8, 8), (40, 100)])
def test_the_first_results_are_in_the_order_of_the_oracle(indexed, k, count):
    index, vectors, model, _ = indexed
    queries = torch.nn.functional.normalize(torch.randn(4, DIM))
    found = index.search(queries, k, rerank=count)
    for query, matches in zip(queries, found, strict=True):
        assert [match.id for match in matches] == wanted(model, query, vectors, count)[:k]
        for match in matches:  # scores stay cosines
            assert match.score == pytest.approx(float(vectors[match.id] @ query), abs=1e-5)
    assert found != index.search(queries, k)


def test_an_image_of_the_index_and_a_filter(indexed):
    index, vectors, model, catalog = indexed
    (matches,) = index.search(ids=[3], k=30, where="label == 'a'", rerank=30)
    allowed = [
        row for row in wanted(model, vectors[3], vectors, IMAGES) if catalog.labels[row] == 0 and row != 3
    ]
    assert [match.id for match in matches] == allowed


def test_the_command_line(indexed, capsys):
    index, vectors, model, _ = indexed
    with pytest.raises(SystemExit, match="0"):
        cli.main(["search", str(index.folder), "--id", "7", "-k", "4", "--rerank", "20", "--json"])
    (matches,) = json.loads(capsys.readouterr().out).values()
    expected = wanted(model, vectors[7], torch.cat([vectors[:7], vectors[8:]]), 20)[:4]
    assert [match["id"] for match in matches] == [row + (row >= 7) for row in expected]


def test_what_cannot_be_reranked(indexed, tmp_path):
    index, vectors, model, catalog = indexed
    with pytest.raises(ValueError, match=r"rerank=-1: must not be negative"):
        index.search(vectors[:1], rerank=-1)
    short = Index.build(tmp_path / "short", model, catalog, vectors=vectors.numpy(), dims=4, progress=False)
    with pytest.raises(ValueError, match=r"rerank=9: the index has 4 of the model's 6 dimensions"):
        short.search(vectors[:1], rerank=9)
    plain = Embedder.create(backbone="small", dim=DIM, stored=48)
    other = Index.build(tmp_path / "plain", plain, catalog, vectors=vectors.numpy(), progress=False)
    with pytest.raises(ValueError, match=r"rerank=9: the model has learned no similarity: train it with"):
        other.search(vectors[:1], rerank=9)
