"""The index: right results, every change whole or not at all, every damage found."""

import contextlib
import io
import os
import resource
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from firstpage import cli
from firstpage.data import Catalog
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.search import Index, index_folder
from firstpage.search.filters import matching_rows


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Embedder.create(backbone="small", dim=8, stored=32, crop=32).eval()


def draw(path, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).resize((40, 30), Image.Resampling.BICUBIC).save(path)


def catalog_of(root, names, prices=None):
    classes = sorted({name.partition("/")[0] for name in names})
    labels = np.array([classes.index(name.partition("/")[0]) for name in names], np.int64)
    columns = {} if prices is None else {"price": [str(price) for price in prices]}
    return Catalog("shop", root, list(names), labels, classes, {}, columns=columns)


NAMES = [f"{kind}/{number}.png" for kind in ("cup", "mug", "pot") for number in range(4)]


@pytest.fixture
def shop(tmp_path):
    for seed, name in enumerate(NAMES):
        draw(tmp_path / "shop" / name, seed)
    return tmp_path / "shop"


@pytest.fixture
def built(shop, model, tmp_path):
    catalog = catalog_of(shop, NAMES, prices=range(12))
    return Index.build(tmp_path / "index", model, catalog, cache=tmp_path / "cache", progress=False)


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def test_results_are_those_of_a_full_sort(built, shop, model):
    vectors = model.embed([shop / name for name in NAMES], progress=False)
    cosine = vectors @ vectors.T
    found = built.search([shop / name for name in NAMES], k=5)
    for query, line in enumerate(found):
        order = cosine[query].argsort(descending=True)[:5]
        assert [match.id for match in line] == order.tolist()
        np.testing.assert_allclose([match.score for match in line], cosine[query][order], atol=1e-5)
        assert line[0].path == str(shop / NAMES[query])
        assert line[0].label == NAMES[query][:3]
        assert line[0].columns == {"price": str(query)}
    assert built.search(vectors[:1] * 3, k=99)[0][0].id == 0
    assert len(built.search(vectors[:1], k=99)[0]) == 12


def test_queries_by_id_by_mean_and_within_a_filter(built, model, shop):
    [by_id] = built.search(ids=[5], k=12)
    assert 5 not in [match.id for match in by_id]
    assert len(by_id) == 11
    [cheap] = built.search([shop / NAMES[0]], k=12, where="label == 'mug' and price < 6")
    assert sorted(match.id for match in cheap) == [4, 5]
    [mean] = built.search([shop / NAMES[0]], ids=[7], k=1, average=True)
    vectors = model.embed([shop / NAMES[0], shop / NAMES[7]], progress=False)
    expected = torch.nn.functional.normalize(vectors.mean(0), dim=0) @ vectors.T
    assert mean[0].score >= expected.max() - 1e-5
    assert built.search([]) == []
    for wrong, message in [
        ({"ids": [99]}, "id 99: is not in the index"),
        ({"ids": [0], "k": 0}, "k=0: must be at least 1"),
        ({"queries": torch.zeros(1, 5)}, "queries: 5 dimensions; the index has 8"),
        ({"ids": [0], "where": "color == 1"}, "no column 'color'; there are label, path, price"),
    ]:
        with pytest.raises(UserError, match=message):
            built.search(**wrong)


def test_blocks_and_segments_do_not_matter(built, shop, tmp_path, monkeypatch):
    draw(shop / "jug/0.png", 50)
    grown = built.add(catalog_of(shop, [*NAMES, "jug/0.png"]), cache=tmp_path / "cache", progress=False)
    assert len(grown.manifest.segments) == 2
    expected = grown.search(ids=range(13), k=6)
    monkeypatch.setattr("firstpage.search.vectors.BLOCK", 5)
    again = grown.search(ids=range(13), k=6)
    assert [[match.id for match in line] for line in again] == [[m.id for m in line] for line in expected]


def test_half_precision_takes_half_and_finds_the_same(shop, model, tmp_path):
    index = Index.build(
        tmp_path / "half",
        model,
        catalog_of(shop, NAMES),
        precision="float16",
        cache=tmp_path / "cache",
        progress=False,
    )
    assert (tmp_path / "half/segments/000001/vectors.bin").stat().st_size == 12 * 8 * 2
    assert [line[0].id for line in index.search([shop / name for name in NAMES], k=1)] == list(range(12))


def test_add_remove_and_update(built, shop, tmp_path, monkeypatch):
    embedded, embed = [], Embedder.embed

    def spy(self, images, **options):
        embedded.extend([len(options["rows"])] if "rows" in options else [])
        return embed(self, images, **options)

    monkeypatch.setattr(Embedder, "embed", spy)
    options = {"cache": tmp_path / "cache", "progress": False}
    draw(shop / "jug/0.png", 50)
    grown = built.add(catalog_of(shop, [*NAMES, "jug/0.png"]), **options)
    assert (len(grown), embedded) == (13, [1])
    assert grown.ids.tolist() == list(range(13))
    assert files(grown.folder) == files(grown.add(catalog_of(shop, [*NAMES, "jug/0.png"]), **options).folder)

    smaller = grown.remove([3], [shop / "jug/0.png", shop / NAMES[0]])
    assert smaller.ids.tolist() == [1, 2, *range(4, 12)]
    assert all(match.id not in (0, 3, 12) for match in smaller.search(ids=[1], k=20)[0])
    before = files(smaller.folder)
    with pytest.raises(UserError, match=r"nowhere.png: is not in the index"):
        smaller.remove([1], ["nowhere.png"])
    assert files(smaller.folder) == before

    draw(shop / NAMES[1], 99)
    draw(shop / "jug/1.png", 51)
    (shop / NAMES[2]).unlink()
    names = [name for name in NAMES if name not in (NAMES[0], NAMES[2])] + ["jug/1.png"]
    embedded.clear()
    current = smaller.update(catalog_of(shop, names), **options)
    assert embedded == [3]  # the changed one, the new one, and the one that had been removed
    assert sorted(row["path"] for row in current.rows()) == sorted(str(shop / name) for name in names)
    assert [line[0].path for line in current.search([shop / name for name in names], k=1)] == [
        str(shop / name) for name in names
    ]
    assert current.verify() == []
    assert len(set(current.ids.tolist())) == len(current)
    assert Image.open(io.BytesIO(current.thumbnail(int(current.ids[-1])))).size == (43, 32)
    empty = current.remove(current.ids.tolist())
    assert (len(empty), empty.search(torch.ones(1, 8))) == (0, [[]])


def test_update_takes_over_labels_and_columns_of_unchanged_files(built, shop, tmp_path):
    options = {"cache": tmp_path / "cache", "progress": False}
    catalog = catalog_of(shop, NAMES, prices=[99, *range(1, 12)])
    catalog.labels[5] = catalog.classes.index("pot")
    current = built.update(catalog, **options)
    assert current.ids.tolist() == [1, 2, 3, 4, *range(6, 14)]  # two were described anew
    described = {row["path"]: (row["label"], row["columns"]["price"]) for row in current.rows()}
    assert described[str(shop / NAMES[0])] == ("cup", "99")
    assert described[str(shop / NAMES[5])] == ("pot", "5")
    assert current.update(catalog_of(shop, NAMES[:5])).rows()[0]["columns"] == {"price": "1"}  # none named


def test_an_index_that_is_changed_while_it_is_opened_is_opened_as_it_is_then(built, monkeypatch):
    before = built.remove([3])
    read, read_manifest = [], index_folder.read_manifest

    def change_after(folder):
        manifest = read_manifest(folder)
        read.append(manifest.generation)
        if len(read) == 1:
            before.remove([5])  # its removal of row 3 is another file now
        return manifest

    monkeypatch.setattr("firstpage.search.index.read_manifest", change_after)
    assert Index.open(built.folder).ids.tolist() == [0, 1, 2, 4, *range(6, 12)]
    assert read[0] < read[-1]


def test_a_change_that_is_cut_off_leaves_the_old_index_or_the_new_one(built, shop, tmp_path, monkeypatch):
    options = {"cache": tmp_path / "cache", "progress": False}
    draw(shop / NAMES[1], 99)
    draw(shop / "jug/0.png", 50)
    catalog = catalog_of(shop, [*NAMES[1:], "jug/0.png"])
    old = {row["path"] for row in built.rows()}
    new = {str(shop / name) for name in [*NAMES[1:], "jug/0.png"]}
    shutil.copytree(built.folder, tmp_path / "saved")
    write, seen = index_folder.durable.write, set()
    for last in range(20):
        calls = [0]

        def cut(path, data, calls=calls, last=last):
            calls[0] += 1
            if calls[0] > last:
                raise KeyboardInterrupt
            write(path, data)

        with monkeypatch.context() as patch:
            patch.setattr(index_folder.durable, "write", cut)
            with contextlib.suppress(KeyboardInterrupt):
                Index.open(built.folder).update(catalog, **options)
        index = Index.open(built.folder)
        assert index.verify() == []
        paths = {row["path"] for row in index.rows()}
        assert paths in (old, new)
        seen.add(len(paths & new) == len(new))
        again = index.update(catalog, **options)  # whatever was left does no harm
        assert {row["path"] for row in again.rows()} == new
        named = {segment.name for segment in again.manifest.segments}
        assert {path.name for path in (again.folder / "segments").iterdir()} == named
        if calls[0] <= last:
            break
        shutil.rmtree(built.folder)
        shutil.copytree(tmp_path / "saved", built.folder)
    assert seen == {False, True}


def test_every_flipped_byte_is_found(built):
    random = np.random.default_rng(0)
    for path in sorted(built.folder.rglob("*")):
        if not path.is_file() or path.suffix == ".lock":
            continue
        content = path.read_bytes()
        for place in {0, len(content) - 1, *random.integers(0, len(content), 5).tolist()}:
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            try:
                damage = index_folder.find_damage(built.folder, index_folder.read_manifest(built.folder))
            except UserError as error:
                damage = [str(error)]
            assert damage
            assert all(line.isprintable() for line in damage)
        path.write_bytes(content)
    assert built.verify() == []
    shutil.rmtree(built.folder / "segments")
    assert len(built.verify()) == 4
    with pytest.raises(UserError, match="damaged or incomplete"):
        Index.open(built.folder)


def test_a_half_copied_index_is_told_of(built, shop):
    def use():
        index = Index.open(built.folder)
        index.search([shop / NAMES[0]])
        index.thumbnail(11)

    for path in [path for path in sorted(built.folder.rglob("*")) if path.is_file()]:
        content = path.read_bytes()
        for left in (content[: len(content) // 2], None):
            path.write_bytes(left) if left is not None else path.unlink()
            with pytest.raises((UserError, FileNotFoundError), match=str(built.folder)) as error:
                use()
            assert "\n" not in str(error.value)
        path.write_bytes(content)
    use()


def test_a_full_disk_leaves_the_index_as_it_was(built, shop, tmp_path):
    draw(shop / "jug/0.png", 50)
    catalog = catalog_of(shop, [*NAMES, "jug/0.png"])
    before, limit = files(built.folder), resource.getrlimit(resource.RLIMIT_FSIZE)
    options = {"cache": tmp_path / "cache", "progress": False}
    shutil.copytree(built.folder, tmp_path / "other")
    Index.open(tmp_path / "other").add(catalog, **options)  # its pixels are in the cache then
    for room in (20, 300):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limit[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                built.add(catalog, **options)
            with pytest.raises(OSError, match="File too large"):
                built.remove(range(5) if room == 20 else [5])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert before.items() <= files(built.folder).items()
        assert (len(Index.open(built.folder)), built.verify()) == (12, [])
    assert len(built.add(catalog, **options)) == 13


def test_a_missing_image_is_left_out_or_named(built, shop, tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.png"):
        built.search([shop / "nowhere.png"])
    with pytest.warns(UserWarning, match="left out 1 unreadable images, such as mug/nowhere.png"):
        built.add(catalog_of(shop, ["mug/nowhere.png"]), cache=tmp_path / "cache", progress=False)
    (shop / NAMES[3]).unlink()
    assert built.search(ids=[3], k=2)[0]
    assert built.thumbnail(3)


def test_two_that_change_it_do_not_mix(built, shop, tmp_path):
    draw(shop / "jug/0.png", 50)
    late = Index.open(built.folder)
    built.remove([0])
    with pytest.raises(UserError, match="another process has changed it: open it again"):
        late.add(catalog_of(shop, ["jug/0.png"]), cache=tmp_path / "cache", progress=False)
    assert len(late) == 12  # what was opened stays as it was
    with pytest.raises(UserError, match="is an index already"):
        Index.build(built.folder, built.model, catalog_of(shop, NAMES), progress=False)
    with pytest.raises(UserError, match="is not empty; choose another folder"):
        Index.build(shop, built.model, catalog_of(shop, NAMES), progress=False)


def test_another_model_is_refused_and_broken_images_are_left_out(built, shop, model, tmp_path):
    (shop / "mug/9.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"left out 1 unreadable images, such as mug/9.png \(not an image"):
        grown = built.add(catalog_of(shop, [*NAMES, "mug/9.png"]), cache=tmp_path / "cache", progress=False)
    assert len(grown) == 12
    other = Embedder.create(backbone="small", dim=8, stored=32, crop=28)
    other.save(built.folder / "model")
    with pytest.raises(UserError, match="is not the model of this index"):
        Index.open(built.folder).search([shop / NAMES[0]])


def test_filters():
    columns = {"label": np.array(["a", "b", "c"]), "price": np.array(["1", "x", "10"])}
    for where, rows in {
        "label == 'b'": [1],
        "label != 'b'": [0, 2],
        "label in ['a', 'c'] and not price > 5": [0],
        "label not in ('a',)": [1, 2],
        "price >= 1": [0, 2],
        "price == '10' or label > 'b'": [2],
    }.items():
        assert np.flatnonzero(matching_rows(where, columns)).tolist() == rows, where
    wrong = ["", "label", "label ==", "label == b", "__import__('os')", "1 < price < 3", "label in 'a'"]
    for where in [*wrong, "'a' == 'a'", "label == True"]:
        with pytest.raises(UserError, match="where: "):
            matching_rows(where, columns)
    with pytest.raises(UserError, match="longer than 2000"):
        matching_rows("label == 'a' or " * 1000, columns)
    with pytest.raises(UserError, match=r"where: (nested deeper|cannot read)"):
        matching_rows("not " * 300 + "label == 'a'", columns)
    for where in ("label == " + "-" * 1900 + "1", "label in [" + "-" * 1900 + "1]"):
        with pytest.raises(UserError, match="where: cannot read") as told:
            matching_rows(where, columns)
        assert len(str(told.value)) < 500
    assert matching_rows("price < " + "9" * 400, columns).tolist() == [True, False, True]


def test_a_column_is_read_as_numbers_once_however_long_the_filter():
    class Text(str):
        read = 0

        def __float__(self):
            Text.read += 1
            return 1.0

    columns = {"price": np.array([Text("1")] * 10, dtype=object)}
    where = "price in [" + "1," * 500 + "] and price > 0 and price not in [" + "2," * 300 + "]"
    assert matching_rows(where, columns).all()
    assert Text.read == 10


def test_the_commands(shop, model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    model.save("model")

    def run(*command, code=0):
        with pytest.raises(SystemExit) as end:
            cli.main([str(part) for part in command])
        shown = capsys.readouterr()
        assert end.value.code == code, shown
        return shown.out + shown.err

    assert "12 images of 3 classes" in run("index", "build", "model", "shop", "--device", "cpu")
    by_name = run("index", "build", "model", "shop", "--classes", r"(\d)\.png", "--out", "numbers")
    assert "12 images of 4 classes" in by_name
    assert "not calibrated: run firstpage calibrate" in by_name
    shown = run("search", "index", "shop/mug/1.png", "-k", "2", "--where", "label == 'mug'")
    assert shown.splitlines()[:2] == ["shop/mug/1.png", f"   1.000  mug  {tmp_path}/shop/mug/1.png"]
    assert '"score"' in run("search", "index", "--id", "3", "--json")
    assert "0 added, 1 removed\nindex: 11 images" in run("index", "remove", "index", "shop/mug/1.png")
    assert "1 added, 0 removed\nindex: 12 images" in run("index", "add", "index", "shop")
    os.unlink("shop/pot/0.png")
    shown = run("index", "update", "index", "shop")
    assert "0 added, 1 removed\nindex: 11 images" in shown
    assert "0/0" not in shown
    assert "filters: label, path" in run("index", "info", "index")
    assert run("index", "verify", "index") == "OK\n"
    (tmp_path / "index/segments/000001/vectors.bin").unlink()
    assert "segments/000001/vectors.bin: missing" in run("index", "verify", "index", code=1)
    assert "no index there; firstpage index build makes one" in run("search", "nowhere", "a.jpg", code=2)
    assert "name an image" in run("search", "index", code=2)
