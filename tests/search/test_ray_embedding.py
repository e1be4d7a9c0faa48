"""Embedding on Ray: the same vectors as without it; a killed worker costs its part, a killed run nothing."""

import contextlib
import os
import signal
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from firstpage import cli
from firstpage.data import Catalog, read
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.search import Index, ray_embedding

parquet = pytest.importorskip("pyarrow.parquet")
if find_spec("ray") is None:
    pytest.skip("ray is not installed", allow_module_level=True)

COUNT, PART = 120, 2


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A saved model, and a folder of images, one of them broken."""
    root = tmp_path_factory.mktemp("ray")
    random = np.random.default_rng(0)
    (root / "photos").mkdir()
    for number in range(COUNT):
        pixels = random.integers(0, 256, (6, 8, 3), np.uint8)
        Image.fromarray(pixels).resize((48, 36)).save(root / f"photos/{number:03d}.png")
    (root / "photos/007.png").write_bytes(b"no image")
    torch.manual_seed(0)
    Embedder.create(backbone="small", dim=8, stored=32, crop=32).save(root / "model")
    return root


@pytest.fixture(scope="module")
def _cluster():
    """A cluster of two workers, on this machine."""
    import ray  # takes more than a second, which each worker of `make test` would spend to collect the tests

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # it would leave a token in the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        for name in ("start_monitor", "start_log_monitor", "start_api_server"):  # a second each; not needed
            patch.setattr(f"ray._private.node.Node.{name}", lambda *_, **__: None, raising=False)
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(num_cpus=2, object_store_memory=80 * 2**20, **quiet)
        yield
        ray.shutdown()


def expected(place):
    files = [place / f"photos/{number:03d}.png" for number in range(COUNT) if number != 7]
    return Embedder.load(place / "model").embed(files, progress=False).numpy()


@pytest.mark.usefixtures("_cluster")
def test_a_killed_worker_costs_its_part_and_finished_parts_are_not_done_again(place, tmp_path, monkeypatch):
    out, catalog, workers = tmp_path / "vectors.parquet", read(place / "photos", unlabeled=True), []
    original = ray_embedding._write
    with monkeypatch.context() as patch:  # a run that is cut off after five parts
        patch.setattr(ray_embedding, "_run", cut_off_after(5))
        patch.setattr(ray_embedding, "ray_cluster", contextlib.nullcontext)
        with pytest.raises(KeyboardInterrupt):
            ray_embedding.embed_on_ray(place / "model", catalog, out, part=PART, progress=False)
    before = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    assert sorted(before) == ["_parts.json", *(f"part-{number:06d}.parquet" for number in range(5))]

    def write(file, catalog, rows, splits, done):
        workers.append(done.worker)
        if len(workers) == 1:
            os.kill(done.worker, signal.SIGKILL)
        original(file, catalog, rows, splits, done)

    monkeypatch.setattr(ray_embedding, "_write", write)
    told = ray_embedding.embed_on_ray(place / "model", catalog, out, part=PART, progress=False)
    assert told == f"wrote {COUNT} images in {COUNT // PART} parts, 5 of them were there to {out}"
    assert len(workers) == COUNT // PART - 5
    assert len({*workers}) >= 2  # others went on
    after = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    assert all(after[name] == time for name, time in before.items())
    rows, vectors = ray_embedding.read_parts(out, catalog)
    assert rows.tolist() == [number for number in range(COUNT) if number != 7]
    np.testing.assert_allclose(vectors, expected(place), atol=1e-5)
    whole = parquet.read_table(out)  # as a folder of Parquet files is read
    assert whole.column_names == ["path", "label", "split", "embedding"]
    assert len(whole) == COUNT - 1


def cut_off_after(parts):
    """What does the work of Ray in this process, and stops after so many parts."""

    def run(cluster, model, items):
        with tempfile.TemporaryDirectory() as folder:
            model.save(folder)
            worker = ray_embedding.Worker({file.name: file.read_bytes() for file in Path(folder).iterdir()})
        yield from (worker.embed(*item) for item in items[:parts])
        if len(items) > parts:
            raise KeyboardInterrupt

    return run


def test_the_commands(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ray_embedding, "_run", cut_off_after(COUNT))
    monkeypatch.setattr(ray_embedding, "ray_cluster", contextlib.nullcontext)
    listing = tmp_path / "photos.txt"
    listing.write_text("".join(f"file://{place}/photos/{number:03d}.png\n" for number in range(9)))
    commands = [
        ["embed", place / "model", listing, tmp_path / "listed.parquet", "--ray", "auto"],
        ["index", "build", place / "model", place / "photos", "--out", tmp_path / "index", "--ray", "auto"],
    ]
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in command])
        assert ended.value.code == 0, capsys.readouterr()
    assert "wrote 9 images in 1 parts to " in capsys.readouterr().out
    table = parquet.read_table(tmp_path / "listed.parquet")
    assert table["path"][0].as_py() == f"file://{place}/photos/000.png"
    np.testing.assert_allclose(np.array(table["embedding"].to_pylist()), expected(place)[:8], atol=1e-5)
    index = Index.open(tmp_path / "index")
    assert len(index) == COUNT - 1
    assert index.verify() == []
    [[best]] = index.search([place / "photos/100.png"], k=1)
    assert best.path == str(place / "photos/100.png")


def test_what_cannot_work_is_told(place, tmp_path, monkeypatch):
    catalog = Catalog("x", place / "photos", ["000.png"], np.zeros(1, int), ["a"], {})
    (tmp_path / "other.parquet").mkdir()
    (tmp_path / "other.parquet/note.txt").touch()
    for out, message in [
        ("vectors.npz", "--ray writes a folder of Parquet files"),
        ("other.parquet", "holds something else: choose another name, or remove it"),
    ]:
        with pytest.raises(UserError, match=message):
            ray_embedding.embed_on_ray(place / "model", catalog, tmp_path / out)
    ray_embedding._plan(tmp_path / "begun.parquet", "f00", ["a.png"], 4096)
    with pytest.raises(UserError, match="holds parts of another model or of other images"):
        ray_embedding.embed_on_ray(place / "model", catalog, tmp_path / "begun.parquet")
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match=r"needs ray: pip install 'firstpage\[ray\]'"):
        ray_embedding.embed_on_ray(place / "model", catalog, tmp_path / "new.parquet")


def test_images_are_found_by_listing_table_and_address(place, tmp_path):
    (tmp_path / "table.csv").write_text("path,label\ns3://shop/1.jpg,mug\n2.jpg,cup\n")
    catalog = ray_embedding.read_addresses(str(tmp_path / "table.csv"))
    assert [ray_embedding._address(catalog, row) for row in range(2)] == [
        "s3://shop/1.jpg",
        f"{tmp_path}/2.jpg",
    ]
    found = ray_embedding.read_addresses(f"file://{place}/photos")
    assert len(found) == COUNT
    assert found.paths[3] == f"file://{place}/photos/003.png"
    with pytest.raises(UserError, match=r"nowhere.txt: cannot be read"):
        ray_embedding.read_addresses(str(tmp_path / "nowhere.txt"))
