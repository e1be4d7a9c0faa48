"""Precision, dimensions and engines: what they lose is measured, what they find has exact scores."""

import shutil
import subprocess
import sys
import warnings
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from firstpage.data import Catalog
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.search import Index, engines, milvus_mirror
from firstpage.search.filters import matching_rows

DIM, COUNT = 16, 2000


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Embedder.create(backbone="small", dim=DIM, stored=32, crop=32).eval()


def catalog_of(start, stop, **columns):
    names = [f"{number}.jpg" for number in range(start, stop)]
    labels = np.arange(start, stop) % 5
    return Catalog("made", Path("/made"), names, labels, list("abcde"), {}, columns=columns)


def table(start, stop):
    """A catalog with prices, of which every third is no number."""
    return catalog_of(start, stop, price=["?" if n % 3 == 0 else str(n % 40) for n in range(start, stop)])


def vectors_of(start, stop):
    """Vectors around 50 centers, not of length one."""
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((50, DIM))
    noise = draw.standard_normal((COUNT * 2, DIM))
    return (2 * centers[np.arange(start, stop) % 50] + noise[start:stop]).astype(np.float32)


VECTORS = vectors_of(0, COUNT)
UNIT = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
QUERIES = torch.from_numpy(VECTORS[::100] + 0.1)
EVERYTHING = np.concatenate([VECTORS[:500], QUERIES[:3].numpy(), VECTORS[503:600]])  # in Milvus, at the end
EVERYTHING /= np.linalg.norm(EVERYTHING, axis=1, keepdims=True)


def ids(found):
    return [[match.id for match in line] for line in found]


def scores(found):
    return np.array([[match.score for match in line] for line in found])


def exact(vectors, chosen, k=10):
    """The ids and cosines of a full sort."""
    cosine = torch.nn.functional.normalize(QUERIES, dim=1).numpy() @ vectors[chosen].T
    order = np.argsort(-cosine, axis=1)[:, :k]
    return np.asarray(chosen)[order].tolist(), np.take_along_axis(cosine, order, 1)


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    """An exact index, which no test changes."""
    folder = tmp_path_factory.mktemp("plain") / "index"
    return Index.build(folder, model, table(0, COUNT), vectors=VECTORS, progress=False)


def test_an_index_of_vectors_opens_no_image(plain):
    found = plain.search(QUERIES)
    assert (ids(found), len(plain)) == (exact(UNIT, np.arange(COUNT))[0], COUNT)
    np.testing.assert_allclose(scores(found), exact(UNIT, np.arange(COUNT))[1], atol=1e-6)
    assert found[0][0].columns == {"price": table(0, COUNT).columns["price"][found[0][0].id]}
    assert plain.manifest.recall is None
    rows = plain.rows()
    assert [rows[7]["path"], rows[-1]["id"], len(rows[3:5])] == ["/made/7.jpg", COUNT - 1, 2]
    with pytest.raises(UserError, match=r"/made/7\.jpg"):
        plain.thumbnail(7)
    with pytest.raises(UserError, match=r"vectors: shape \(3, 16\) does not fit 2 images of 16 dimensions"):
        Index.build(plain.folder.parent / "wrong", plain.model, table(0, 2), vectors=VECTORS[:3])


@pytest.mark.parametrize(("precision", "error", "size"), [("float16", 1e-3, 2), ("int8", 1e-2, 1)])
def test_coarser_numbers_change_cosines_little(model, tmp_path, precision, error, size):
    index = Index.build(
        tmp_path / "index", model, table(0, COUNT), vectors=VECTORS, precision=precision, progress=False
    )
    found = index.search(torch.from_numpy(VECTORS[:50]), k=1)
    assert ids(found) == [[number] for number in range(50)]
    assert np.abs(scores(found) - 1).max() < error
    everything = scores(index.search(QUERIES[:1], k=COUNT))[0]
    np.testing.assert_allclose(everything, exact(UNIT, np.arange(COUNT), COUNT)[1][0], atol=error)
    assert (index.folder / "segments/000001/vectors.bin").stat().st_size == size * COUNT * DIM
    assert 0.9 < index.manifest.recall <= 1
    assert f"recall@10 of these vectors: {index.manifest.recall:.3f}" in index.info()
    [by_id] = index.search(ids=[3], k=5)
    [by_vector] = index.search(torch.from_numpy(VECTORS[3:4]), k=6)
    assert len({*ids([by_id])[0]} & {*ids([by_vector])[0]}) >= 4


def test_fewer_dimensions_are_measured_and_warned_of(model, tmp_path):
    with pytest.warns(
        UserWarning, match=r"4 of 16 dimensions, float32: recall@10 is 0\.\d+ against"
    ) as caught:
        index = Index.build(tmp_path / "few", model, table(0, COUNT), vectors=VECTORS, dims=4, progress=False)
    cut = VECTORS[:, :4] / np.linalg.norm(VECTORS[:, :4], axis=1, keepdims=True)
    assert ids(index.search(torch.from_numpy(VECTORS[:50]), k=1)) == [[number] for number in range(50)]
    assert ids(index.search(torch.from_numpy(cut[:50]), k=1)) == [[number] for number in range(50)]
    rows = np.sort(np.random.default_rng(0).permutation(COUNT)[: engines.SAMPLE])
    full, found = UNIT[rows] @ UNIT.T, cut[rows] @ cut.T
    full[np.arange(len(rows)), rows] = found[np.arange(len(rows)), rows] = -9
    both = [
        np.intersect1d(a, b)
        for a, b in zip(np.argsort(-full)[:, :10], np.argsort(-found)[:, :10], strict=True)
    ]
    assert index.manifest.recall == pytest.approx(np.mean([len(line) / 10 for line in both]), abs=2e-3)
    assert f"{index.manifest.recall:.3f}" in str(caught[0].message)
    for wrong, message in [
        ({"dims": 17}, "dims=17: the model has 1 to 16"),
        ({"engine": "lsh"}, "engine='lsh'"),
    ]:
        with pytest.raises(UserError, match=message):
            Index.build(tmp_path / "wrong", model, table(0, 9), vectors=VECTORS[:9], **wrong)
    with pytest.raises(UserError, match="queries: 5 dimensions; the index has 4"):
        index.search(torch.ones(1, 5))


@pytest.fixture(scope="module", params=["hnsw", "ivfpq"])
def built(request, model, tmp_path_factory):
    pytest.importorskip("faiss", reason="needs faiss-cpu")
    folder = tmp_path_factory.mktemp(request.param) / "index"
    return Index.build(folder, model, table(0, COUNT), vectors=VECTORS, engine=request.param, progress=False)


@pytest.fixture
def approximate(built, tmp_path):
    """A copy that a test may change."""
    return Index.open(shutil.copytree(built.folder, tmp_path / "index"))


FILTERS = ["label == 'b'", "price < 12", "not price < 12 and label in ['a', 'c']", "path > '/made/3'"]


def test_faiss_names_candidates_whose_scores_are_exact(built, plain, monkeypatch):
    file = built.manifest.neighbors
    assert (file.kind, file.until, file.rows) == (built.manifest.engine, COUNT, COUNT)
    assert file.recall > 0.97
    assert f"engine: {file.kind} of 2,000 images, recall@10 {file.recall:.3f} against exact" in built.info()
    expected = plain.search(QUERIES)
    found = built.search(QUERIES)
    same = [len({*a} & {*b}) for a, b in zip(ids(found), ids(expected), strict=True)]
    assert np.mean(same) > 9.7
    cosine = torch.nn.functional.normalize(QUERIES, dim=1).numpy() @ UNIT.T
    np.testing.assert_allclose(scores(found), np.take_along_axis(cosine, np.array(ids(found)), 1), atol=1e-5)
    with monkeypatch.context() as patch:  # the engine is asked, not the vectors compared
        patch.setattr(type(built._vectors), "_cosines", lambda *_: iter(()))
        assert ids(built.search(QUERIES)) == ids(found)
    assert all(match.id != 7 for match in built.search(ids=[7], k=20)[0])
    for few in (0, engines.FEW):
        monkeypatch.setattr(engines, "FEW", few)
        for where in FILTERS:
            right, got = plain.search(QUERIES, where=where), built.search(QUERIES, where=where)
            near = [len({*a} & {*b}) for a, b in zip(ids(got), ids(right), strict=True)]
            assert np.mean(near) > (9.5 if few == 0 else 9.99), where
            allowed = set(np.flatnonzero(matching_rows(where, plain.columns)))
            assert all({*line} <= allowed for line in ids(got)), where
    assert len(built.search(QUERIES[:1], k=COUNT)[0]) == COUNT  # more than it names
    assert len(built.search(QUERIES[:1], k=1000, where="label == 'b'")[0]) == COUNT // 5


def test_what_was_added_and_removed_since_is_searched_exactly(approximate):
    file = approximate.manifest.neighbors
    more = vectors_of(COUNT, COUNT + 100)
    grown = approximate.add(table(COUNT, COUNT + 100), vectors=more, progress=False)
    assert grown.manifest.neighbors == file
    assert "100 more are compared exactly" in grown.info()
    assert ids(grown.search(torch.from_numpy(more), k=1)) == [[COUNT + number] for number in range(100)]
    smaller = grown.remove([*range(0, 100, 2), COUNT + 3])
    assert smaller.manifest.neighbors == file
    found = smaller.search(torch.from_numpy(VECTORS[:100]), k=3)
    assert not {id for line in ids(found) for id in line} & {*range(0, 100, 2), COUNT + 3}
    assert [line[0] for line in ids(found)[1::2]] == list(range(1, 100, 2))
    assert smaller.verify() == []

    much = vectors_of(COUNT + 100, COUNT + 600)
    rebuilt = smaller.add(table(COUNT + 100, COUNT + 600), vectors=much, progress=False)
    assert rebuilt.manifest.neighbors.rows == len(rebuilt) == COUNT + 600 - 51
    assert not (rebuilt.folder / file.name).exists()
    assert ids(rebuilt.search(torch.from_numpy(much), k=1)) == [[COUNT + 100 + n] for n in range(500)]
    again = rebuilt.remove(range(1000, 2000))
    assert again.manifest.neighbors.rows == len(again)
    assert again.verify() == []


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing", "no faiss"])
def test_a_damaged_file_is_told_of_and_not_used(approximate, plain, damage, monkeypatch):
    path = approximate.folder / approximate.manifest.neighbors.name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    if damage == "missing":
        path.unlink()
    elif damage == "no faiss":
        monkeypatch.setitem(sys.modules, "faiss", None)
    else:
        path.write_bytes(content if damage == "flipped" else content[:-1])
    message = "pip install 'firstpage\\[search\\]'" if damage == "no faiss" else "firstpage index sync"
    index = Index.open(approximate.folder)
    with pytest.warns(UserWarning, match=message):
        assert ids(index.search(QUERIES)) == ids(plain.search(QUERIES))
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        assert ids(index.search(QUERIES)) == ids(plain.search(QUERIES))
    if damage == "no faiss":
        with pytest.warns(UserWarning, match=r"FAISS is not installed.*compared one by one"):
            grown = index.add(
                table(COUNT, COUNT + 900), vectors=vectors_of(COUNT, COUNT + 900), progress=False
            )
        assert grown.manifest.neighbors == approximate.manifest.neighbors
        return
    state = "missing" if damage == "missing" else "damaged"
    assert index.verify() == [f"{path.name}: {state}"]
    mended = index.sync()
    assert mended.verify() == []
    assert mended.manifest.neighbors.name != path.name
    mended.search(QUERIES)
    assert mended.sync().manifest == mended.manifest


def test_every_file_is_checked(approximate):
    for path in [path for path in sorted(approximate.folder.rglob("*")) if path.is_file()]:
        content = bytearray(path.read_bytes())
        if not content:  # the thumbnails of vectors
            continue
        content[len(content) // 3] ^= 4
        path.write_bytes(content)
        if path.name == "index.json":
            with pytest.raises(UserError, match=r"index\.json"):
                Index.open(approximate.folder)
        else:
            assert approximate.verify() == [f"{path.relative_to(approximate.folder)}: damaged"]
        content[len(content) // 3] ^= 4
        path.write_bytes(content)


def test_the_engine_follows_the_size(model, tmp_path, monkeypatch):
    pytest.importorskip("faiss", reason="needs faiss-cpu")
    monkeypatch.setattr(engines, "EXACT", 300)
    monkeypatch.setattr(engines, "HNSW", 600)
    index = Index.build(tmp_path / "index", model, table(0, 300), vectors=VECTORS[:300], progress=False)
    kinds = [index.manifest.neighbors.kind]
    for stop in (400, 700):
        start = len(index)
        index = index.add(table(start, stop), vectors=VECTORS[start:stop], progress=False)
        kinds.append(index.manifest.neighbors.kind)
    kinds.append(index.remove(range(500)).manifest.neighbors.kind)
    assert kinds == ["", "hnsw", "ivfpq", ""]
    assert not list(index.folder.glob("*.faiss"))


# Milvus: the same tests for the embedded one and for a server.

SERVER = """
import os, sys
from milvus import default_server
folder, binaries = sys.argv[1:]
os.symlink(binaries, folder + "/bin")
default_server.set_base_dir(folder)
default_server.config.set("proxy.timeTickInterval", 20)  # ms that a query waits for the changes before it
default_server.start()
print(default_server.listen_port, flush=True)
sys.stdin.read()
default_server.stop()
"""


@pytest.fixture(scope="module", autouse=True)
def starting_server(request, tmp_path_factory):
    """The process of a Milvus server, which starts while the first tests run, or None.

    Unpacking its binaries takes longer than all else: pytest's cache keeps them.
    """
    asked = any(item.name == "test_milvus[server]" for item in request.session.items)
    if not (asked and find_spec("milvus") and find_spec("pymilvus")):
        yield None
        return
    binaries = request.config.cache.mkdir("milvus")
    command = [sys.executable, "-c", SERVER, str(tmp_path_factory.mktemp("server")), str(binaries)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.communicate()


@pytest.fixture
def server(starting_server):
    pytest.importorskip("pymilvus", reason="needs pymilvus")
    pytest.importorskip("milvus", reason="needs the package milvus, which carries the server")
    port = starting_server.stdout.readline().strip()
    if not port:
        pytest.skip("the Milvus server does not start here")
    return f"http://127.0.0.1:{port}", starting_server.communicate


@pytest.mark.parametrize("kind", ["lite", "server"])
def test_milvus(kind, model, tmp_path, monkeypatch, request):
    """All in one: a collection of a server takes seconds to make."""
    pytest.importorskip("pymilvus", reason="needs pymilvus")
    if kind == "lite":
        pytest.importorskip("milvus_lite", reason="needs milvus-lite")
    address, stop = str(tmp_path / "index" / "copy.db"), None
    if kind == "server":
        address, stop = request.getfixturevalue("server")
    build = {"vectors": VECTORS[:500], "milvus": address, "progress": False}
    index = Index.build(tmp_path / "index", model, table(0, 500), **build)
    assert index.manifest.milvus.address == (address if kind == "server" else "copy.db")
    monkeypatch.setattr(engines, "FEW", 0)
    finds_what_comparing_every_vector_finds(index, kind)
    changed = follows_a_change(index)
    if kind == "lite":
        is_opened_by_another_process(index.folder)
        failing_in_the_middle_is_told_and_loses_nothing(Index.open(index.folder), monkeypatch)
    else:
        another_index_of_the_collection_is_told(changed, tmp_path)
        a_server_that_stops_is_told_of_and_nothing_is_lost(Index.open(index.folder), stop, monkeypatch)


@contextmanager
def only_the_engine(index):
    """Comparing every vector finds nothing in the block: what is found was named by Milvus."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(index._vectors), "_cosines", lambda *_: iter(()))
        yield


MILVUS_FILTERS = {
    "lite": [
        "label == 'b' and path > '/made/3'",
        "not price < 12 and label in ['a', 'c']",
        "not (price > 5 or label == 'a')",
        "price not in [1, '?', 8.0]",
        "price != 7 and price >= '2'",
        "label not in [] and not (label != 'b' and price != '?')",
    ],
    "server": [  # the same, but each takes a moment there
        "(label == 'b' and path > '/made/3' or price in [30, '2']) and not price < 9 and label in ['a', 'b']",
        "not (price > 5 or label == 'a') and price not in [1, 8.0]",
        "price != 7 and price >= '2' and label not in [] and not (label != 'b' and price != '?')",
    ],
}


def finds_what_comparing_every_vector_finds(index, kind):
    chosen = np.arange(500)
    with only_the_engine(index):
        found = index.search(QUERIES)
        assert ids(found) == exact(UNIT, chosen)[0]
        np.testing.assert_allclose(scores(found), exact(UNIT, chosen)[1], atol=1e-5)
        for where in MILVUS_FILTERS[kind]:
            allowed = np.flatnonzero(matching_rows(where, index.columns))
            assert 5 <= len(allowed) < 500
            assert ids(index.search(QUERIES, k=5, where=where)) == exact(UNIT, allowed, 5)[0], where


def follows_a_change(index):
    names, label = ["é'\"\\\n.jpg", "1.jpg", "2.jpg"], "a'\"\\é"
    odd = Catalog("odd", Path("/odd"), names, np.zeros(3, int), [label], {}, columns={"color": ["n'"] * 3})
    changed = index.remove(range(0, 500, 2)).add(odd, vectors=QUERIES[:3].numpy(), progress=False)
    chosen = [*range(1, 500, 2), 500, 501, 502]
    with only_the_engine(changed):
        assert ids(changed.search(QUERIES, k=4)) == exact(EVERYTHING, chosen, 4)[0]
        assert ids(changed.search(QUERIES[:3], k=1, where=f"label == {label!r} and price == ''")) == [
            [500],
            [501],
            [502],
        ]
        assert ids(changed.search(QUERIES, k=4, where="color == ''")) == exact(UNIT, chosen[:-3], 4)[0]
    assert "engine: Milvus at" in changed.info()
    with pytest.warns(UserWarning, match="does not have the images of this index: firstpage index sync"):
        assert ids(index.search(QUERIES)) == exact(UNIT, np.arange(500))[0]  # it was opened before
    return changed


def is_opened_by_another_process(folder):
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_server(str(folder / "copy.db"))  # as the end of this process would
    index = Index.open(folder)
    with only_the_engine(index):
        assert ids(index.search(QUERIES, k=4)) == exact(EVERYTHING, index.ids, 4)[0]


def another_index_of_the_collection_is_told(index, tmp_path):
    copy = Index.open(shutil.copytree(index.folder, tmp_path / "copy"))
    index = index.remove([1]).add(table(503, 505), vectors=VECTORS[503:505], progress=False)
    with pytest.warns(UserWarning, match="does not have the images of this index"):
        assert 1 in ids(copy.search(QUERIES, k=250))[0]
    with pytest.MonkeyPatch.context() as patch:  # the copy has other images of the same ids, and takes over
        patch.setattr(milvus_mirror.MilvusMirror, "state", lambda _: ("another", ["price", "color"]))
        copy = copy.add(table(1503, 1506), vectors=VECTORS[:3], progress=False)
    with only_the_engine(copy):
        assert [line[0] for line in ids(copy.search(torch.from_numpy(VECTORS[:3])))] == [503, 504, 505]
    index.sync()


def a_server_that_stops_is_told_of_and_nothing_is_lost(index, stop, monkeypatch):
    monkeypatch.setattr(milvus_mirror, "TIMEOUT", 1.0)
    index.search(QUERIES)
    stop()
    with pytest.warns(UserWarning, match=r"Milvus at http.*; every vector is compared instead"):
        assert ids(index.search(QUERIES)) == exact(EVERYTHING, index.ids)[0]
    with pytest.warns(
        UserWarning, match=r"Milvus at http.*; the folder has the change, and firstpage index sync"
    ):
        changed = index.remove([3])
    assert 3 not in changed.ids
    with pytest.raises(UserError, match="Milvus at http"):
        changed.sync()


def failing_in_the_middle_is_told_and_loses_nothing(index, monkeypatch):
    def away(*_, **__):
        raise ConnectionError("gone")

    index.search(QUERIES)
    with monkeypatch.context() as patch:  # in the middle of a search
        patch.setattr(index._engine._client, "search", away)
        with pytest.warns(UserWarning, match=r"Milvus at .*gone; every vector is compared instead"):
            assert ids(index.search(QUERIES)) == exact(EVERYTHING, index.ids)[0]
    for call in ("upsert", "delete"):  # in the middle of a change
        index, many = Index.open(index.folder), table(503, 600)
        with monkeypatch.context() as patch:
            patch.setattr(f"pymilvus.MilvusClient.{call}", away)
            with pytest.warns(
                UserWarning, match=r"the folder has the change, and firstpage index sync .* later"
            ):
                index = (
                    index.add(many, vectors=VECTORS[503:600], progress=False)
                    if call == "upsert"
                    else index.remove([3, 501])
                )
        with pytest.warns(UserWarning, match="does not have the images of this index: firstpage index sync"):
            assert ids(index.search(QUERIES)) == exact(EVERYTHING, index.ids)[0]
        index = index.sync()
        with only_the_engine(index):
            assert ids(index.search(QUERIES)) == exact(EVERYTHING, index.ids)[0]
    assert index.sync().manifest == index.manifest
    assert index.verify() == []


def test_addresses_and_missing_packages(model, tmp_path, monkeypatch, capsys):
    build = {"vectors": VECTORS[:9], "progress": False}
    for address, message in [
        ("http://me:secret@host:1", "leave the password out.*FIRSTPAGE_MILVUS_TOKEN"),
        ("copy.sqlite", r"must be http://HOST:PORT, or a path that ends in \.db"),
        ("http://127.0.0.1:9", r"Milvus at http://127.0.0.1:9: .+"),
    ]:
        monkeypatch.setattr(milvus_mirror, "TIMEOUT", 0.5)
        with pytest.raises(UserError, match=message) as error:
            Index.build(tmp_path / "index", model, table(0, 9), milvus=address, **build)
        assert "secret" not in str(error.value)
        assert not (tmp_path / "index/index.json").exists()
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(UserError, match=r"pip install 'firstpage\[milvus\]'"):
        Index.build(tmp_path / "index", model, table(0, 9), milvus="copy.db", **build)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match=r"pip install 'firstpage\[search\]'"):
        Index.build(tmp_path / "index", model, table(0, 9), engine="hnsw", **build)
