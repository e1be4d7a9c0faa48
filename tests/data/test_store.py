"""The pixel store: right pixels, found again, never half-written, whatever happens in between."""

import errno
import functools
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from PIL import Image

from firstpage._reading import json_checksum
from firstpage.data import decode, jpeg_store, store_builder
from firstpage.data import store as store_module
from firstpage.data.catalog import Catalog
from firstpage.data.decode import NO_MEMORY, Unreadable
from firstpage.data.framing import Framing, decode_rows, file_state
from firstpage.data.jpeg_store import JpegStore, open_pixels
from firstpage.data.locking import exclusive
from firstpage.data.store import PixelStore
from firstpage.data.store_builder import CHUNK, Builder
from firstpage.data.stream import Stream
from firstpage.data.workers import Workers
from firstpage.errors import UserError
from support.broken import make_broken, ordinary_user, picture
from support.children import CONTEXT, run_processes


def catalog_of(root, paths, boxes=None, name="toy"):
    return Catalog(name, Path(root), list(paths), np.zeros(len(paths), np.int64), ["all"], {}, boxes)


@pytest.fixture
def images(tmp_path):
    root = tmp_path / "images"
    root.mkdir()
    names = [f"{index}.png" for index in range(5)]
    for index, name in enumerate(names):
        picture(30 + index, 20, seed=index).save(root / name)
    return catalog_of(root, names)


def built(catalog, folder, **settings):
    return PixelStore.build(
        catalog, folder, **{"size": 8, "resize": "squash", "workers": 0, "progress": False} | settings
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def same(left, right):
    return torch.equal(left.pixels, right.pixels) and torch.equal(left.sizes, right.sizes)


def stores_in(folder):
    return [path for path in Path(folder).iterdir() if not path.name.startswith("building-")]


def test_rows_are_the_images_in_order(images, tmp_path):
    store = built(images, tmp_path / "stores")
    assert isinstance(store.pixels, np.memmap)
    assert (store.pixels.shape, store.pixels.dtype, len(store)) == ((5, 8, 8, 3), np.uint8, 5)
    assert store.ok.all()
    assert store.unreadable == {}
    for row, name in enumerate(images.paths):
        with Image.open(images.root / name) as image:
            expected = np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(store.pixels[row], expected)
    np.testing.assert_array_equal(PixelStore(store.path).pixels, store.pixels)


def test_pad_keeps_everything(tmp_path):
    stripes = Image.new("RGB", (40, 20), "red")
    stripes.paste("blue", (10, 0, 30, 20))
    stripes.save(tmp_path / "a.png")
    pad = built(catalog_of(tmp_path, ["a.png"]), tmp_path / "s", resize="pad").pixels[0]
    assert (pad[:2] == 255).all()
    assert (pad[6:] == 255).all()
    assert (pad[2:6, 0] == (255, 0, 0)).all()
    assert (pad[2:6, 4] == (0, 0, 255)).all()


SHAPES = {  # of a file, and of what is stored of it at 8 pixels, as width and height
    (60, 40): (12, 8),
    (40, 60): (8, 12),
    (40, 44): (8, 9),
    (44, 40): (9, 8),
    (30, 30): (8, 8),
    (3, 4): (8, 11),
    (120, 20): (12, 8),  # cut: only 3:2 of it are kept
    (20, 121): (8, 12),
}


@pytest.fixture
def shapes(tmp_path):
    """Images of many shapes."""
    for number, shape in enumerate(SHAPES):
        picture(*shape, number).save(tmp_path / f"{number}.png")
    return catalog_of(tmp_path, [f"{number}.png" for number in range(len(SHAPES))])


@pytest.mark.parametrize("kind", [PixelStore, JpegStore])
def test_images_keep_their_aspect(shapes, tmp_path, kind):
    store = kind.build(shapes, tmp_path / "stores", size=8, workers=0, progress=False)
    assert [(width, height) for height, width in store.sizes.tolist()] == list(SHAPES.values())
    batch = store.batch(range(len(shapes)))
    assert batch.pixels.shape == (len(shapes), 8, 12, 3)
    for number, ((width, height), stored) in enumerate(SHAPES.items()):
        keep = min(width, height) * 1.5
        left, top = max(0, (width - keep) / 2), max(0, (height - keep) / 2)
        with Image.open(shapes.root / shapes.paths[number]) as image:
            kept = (left, top, width - left, height - top)
            expected = np.asarray(image.resize(stored, Image.Resampling.BILINEAR, box=kept), dtype=int)
        assert batch.image(number).shape == expected.shape
        if kind is PixelStore:
            assert (batch.image(number).numpy() == expected).all()


def test_jpegs_are_small_and_close_to_the_pixels(tmp_path):
    for number in range(3):
        picture(500, 375, number).save(tmp_path / f"{number}.jpg", quality=95)
    catalog = catalog_of(tmp_path, [f"{number}.jpg" for number in range(3)])
    raw = PixelStore.build(catalog, tmp_path / "stores", workers=0, progress=False)
    with JpegStore.build(catalog, tmp_path / "stores", workers=0, progress=False) as small:
        difference = raw.batch([2, 0, 1]).pixels.int() - small.batch([2, 0, 1]).pixels.int()
        assert difference.abs().float().mean() < 2
        assert (small.path / "pixels.bin").stat().st_size * 10 < raw.pixels.nbytes


def test_sizes_that_are_not_square(shapes, tmp_path):
    squashed = built(shapes, tmp_path / "stores", size=(16, 8))
    assert squashed.batch([0, 1]).pixels.shape == (2, 16, 8, 3)
    padded = built(shapes, tmp_path / "stores", size=(16, 8), resize="pad").batch([0]).image(0)
    assert (padded[:5] == 255).all()
    assert (padded[11:] == 255).all()
    assert not (padded[5:11] == 255).all()
    with pytest.raises(UserError, match=r"resize='shorter': is for a square; with size=\(16, 8\) use squash"):
        built(shapes, tmp_path / "stores", size=(16, 8), resize="shorter")


def test_jpegs_interrupted_and_damaged_are_mended(images, tmp_path, monkeypatch):
    catalog = catalog_of(images.root, images.paths[:1] * CHUNK + images.paths[1:] * CHUNK)
    folder = tmp_path / "stores"
    build = functools.partial(JpegStore.build, catalog, folder, size=8, workers=0, progress=False)
    decoded, real = [], store_builder.decode_rows

    def stopped(*task):
        if task[2][0] == "1.png":
            raise KeyboardInterrupt
        decoded.extend(task[2])
        return real(*task)

    with monkeypatch.context() as patch:
        patch.setattr(store_builder, "decode_rows", stopped)
        with pytest.raises(KeyboardInterrupt):
            build()
    assert decoded == images.paths[:1] * CHUNK
    decoded.clear()
    with monkeypatch.context() as patch:
        patch.setattr(store_builder, "decode_rows", lambda *task: decoded.extend(task[2]) or real(*task))
        store = build()
        assert decoded == images.paths[1:] * CHUNK
        expected = store.batch([0, 100, 200])
        content = bytearray((store.path / "pixels.bin").read_bytes())
        content[store._places[100, 0] + 30] ^= 1
        (store.path / "pixels.bin").write_bytes(content)
        decoded.clear()
        with pytest.warns(UserWarning, match="the pixel store is damaged .1 of .* rows, the first is 100"):
            again = build()
        assert decoded == [catalog.paths[100]]
    assert same(again.batch([0, 100, 200]), expected)
    with pytest.raises(UserError, match="a store of the kind 'jpeg', not 'raw'"):
        PixelStore(again.path)


def test_batches_are_decoded_ahead(images, tmp_path):
    with JpegStore.build(images, tmp_path / "stores", size=8, workers=0, progress=False) as store:
        expected = [store.batch(rows) for rows in ([0, 1], [2], [3, 4])]
        submitted, real = [], store._submit
        store._submit = lambda rows, *place: submitted.append(rows.tolist()) or real(rows, *place)
        for rows in ([0, 1], [4], [2], [3, 4]):
            store.prepare(rows)
        assert submitted == [[0, 1], [4], [2], [3, 4]]
        for rows, batch in zip(([0, 1], [2], [3, 4]), expected, strict=True):
            assert same(store.batch(rows), batch)
        assert len(submitted) == 4
        assert list(Path(store._folder.name).iterdir()) == []


def test_the_store_is_chosen_by_size(images, tmp_path, monkeypatch):
    assert isinstance(open_pixels(images, tmp_path / "s", Framing(8), progress=False), PixelStore)
    monkeypatch.setattr(jpeg_store, "RAW_BYTES", 5 * 8 * 12 * 3 - 1)
    with open_pixels(images, tmp_path / "s", Framing(8), progress=False) as chosen:
        assert isinstance(chosen, JpegStore)
    assert isinstance(open_pixels(images, tmp_path / "s", Framing(8), kind="raw", progress=False), PixelStore)


def test_boxes_are_cut_out_with_their_margin(tmp_path):
    image = Image.new("RGB", (60, 60), "red")
    image.paste("blue", (20, 20, 40, 40))
    image.save(tmp_path / "a.png")
    boxes = np.array([[20, 20, 40, 40], [np.nan] * 4], np.float32)
    catalog = catalog_of(tmp_path, ["a.png", "a.png"], boxes)
    tight = built(catalog, tmp_path / "s", size=4, boxes=True).pixels
    assert (tight[0] == (0, 0, 255)).all()
    assert (tight[1, 0, 0] == (255, 0, 0)).all()
    wide = built(catalog, tmp_path / "s", size=40, boxes=True, margin=0.5).pixels[0]
    assert (wide[:9] == (255, 0, 0)).all()
    assert (wide[11:29, 11:29] == (0, 0, 255)).all()
    with pytest.raises(ValueError, match="has no boxes"):
        built(catalog_of(tmp_path, ["a.png"]), tmp_path / "s", boxes=True)


def test_workers_give_the_same_bytes_as_one_process(images, tmp_path):
    many = catalog_of(images.root, images.paths * 40)
    alone, pool = built(many, tmp_path / "a"), built(many, tmp_path / "b", workers=2)
    assert alone.path.name == pool.path.name
    assert contents(alone.path) == contents(pool.path)


def test_every_broken_file_is_listed_and_the_others_are_right(tmp_path):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        root = Path(folder)
        names = make_broken(root)
        picture().save(root / "sound.png")
        catalog = catalog_of(root, [*names, "sound.png"])
        with ordinary_user():
            store = built(catalog, root / "stores")
            again = built(catalog, root / "stores")
            assert again.path == store.path
            with pytest.raises(
                ValueError, match=f"{len(names)} of {len(catalog)} images are unreadable"
            ) as caught:
                built(catalog, root / "stores", strict=True)
        assert "fifo.jpg (a FIFO, not a file)" in caught.value.args[0]
        assert len(str(caught.value)) < 2100
        assert "\n" not in str(caught.value)
        (root / "no-permission.jpg").chmod(0o644)
        mended = built(catalog, root / "stores")
        assert mended.path != store.path
    assert sorted(store.unreadable) == list(range(len(names)))
    assert len(names) >= 200
    assert all(store.unreadable.values())
    assert store.ok.tolist() == [False] * len(names) + [True]
    assert not store.pixels[:-1].any()
    assert store.pixels[-1].any()
    assert names.index("no-permission.jpg") not in mended.unreadable


def test_broken_files_do_not_disturb_worker_processes(tmp_path):
    names = make_broken(tmp_path)
    names.remove("no-permission.jpg")
    picture().save(tmp_path / "sound.png")
    store = built(catalog_of(tmp_path, ["sound.png", *names]), tmp_path / "stores", workers=2)
    assert sorted(store.unreadable) == list(range(1, len(names) + 1))


def test_an_unchanged_store_is_opened_without_reading_a_file(images, tmp_path, monkeypatch):
    store = built(images, tmp_path / "stores")
    os.utime(images.root / "2.png", ns=(1, 1))
    asked = []
    real = store_builder.fingerprint_files
    monkeypatch.setattr(
        store_builder, "fingerprint_files", lambda root, paths: asked.extend(paths) or real(root, paths)
    )
    monkeypatch.setattr(store_builder, "decode_rows", lambda *_: pytest.fail("decoded again"))
    assert built(images, tmp_path / "stores").path == store.path
    assert asked == ["2.png"]
    assert built(images, tmp_path / "stores").path == store.path
    assert asked == ["2.png"]  # its new time was remembered
    moved = tmp_path / "elsewhere"
    images.root.rename(moved)
    for _ in range(2):  # at a new place every file is read, once
        assert built(catalog_of(moved, images.paths), tmp_path / "stores").path == store.path
        assert asked == ["2.png", *images.paths]
    assert json.loads((store.path / "store.json").read_text())["root"] == str(moved)


def of_one_color(root, color):
    """Files of the same names, sizes and times as those of any other color."""
    root.mkdir()
    for name in ("0.bmp", "1.bmp"):
        Image.new("RGB", (9, 9), color).save(root / name)
        os.utime(root / name, (0, 0))
    return catalog_of(root, ["0.bmp"] * CHUNK + ["1.bmp"] * CHUNK)


def stop_at(first, monkeypatch, catalog, folder):
    """Begin to build a store, and be stopped at the chunk that begins with the file `first`."""
    real = store_builder.decode_rows

    def stopped(*task):
        if task[2][0] == first:
            raise KeyboardInterrupt
        return real(*task)

    with monkeypatch.context() as patch:
        patch.setattr(store_builder, "decode_rows", stopped)
        with pytest.raises(KeyboardInterrupt):
            built(catalog, folder)


def test_files_of_the_same_size_and_time_elsewhere_are_others(tmp_path):
    red, blue = (of_one_color(tmp_path / color, color) for color in ("red", "blue"))
    for catalog, color in [(red, (255, 0, 0)), (blue, (0, 0, 255))] * 2:
        assert (built(catalog, tmp_path / "stores").pixels == color).all()


def test_an_interrupted_build_does_not_go_on_with_the_files_of_another_folder(tmp_path, monkeypatch):
    red, blue = (of_one_color(tmp_path / color, color) for color in ("red", "blue"))
    stop_at("1.bmp", monkeypatch, red, tmp_path / "stores")
    assert (built(blue, tmp_path / "stores").pixels == (0, 0, 255)).all()


def test_what_could_not_be_read_for_want_of_memory_is_tried_again(images, tmp_path, monkeypatch):
    def lacking(self, file, box=None):
        if file.name.endswith("3.png"):
            raise Unreadable(file.name, NO_MEMORY)
        return real(self, file, box)

    boxes = np.tile(np.array([2, 2, 20, 15], np.float32), (5, 1))
    catalog, real = catalog_of(images.root, images.paths, boxes), Framing.read
    monkeypatch.setattr(Framing, "read", lacking)
    for _ in range(2):
        store = built(catalog, tmp_path / "stores", boxes=True)
        assert store.unreadable == {3: NO_MEMORY}
    monkeypatch.undo()
    decoded = []
    monkeypatch.setattr(
        store_builder, "decode_rows", lambda *task: decoded.extend(task[2]) or decode_rows(*task)
    )
    mended = built(catalog, tmp_path / "stores", boxes=True)
    assert (mended.path, mended.unreadable, decoded) == (store.path, {}, ["3.png"])
    np.testing.assert_array_equal(mended.pixels, built(catalog, tmp_path / "fresh", boxes=True).pixels)


def test_what_one_pillow_could_not_read_another_tries_again(images, tmp_path, monkeypatch):
    picture().save(images.root / "5.avif")
    (images.root / "6.png").write_bytes(b"no image")
    catalog = catalog_of(images.root, [*images.paths, "5.avif", "6.png"])
    with monkeypatch.context() as older:
        older.setattr(decode, "FORMATS", ("JPEG", "PNG"))
        older.setattr(PIL, "__version__", "11.3.0")
        store = built(catalog, tmp_path / "stores")
        assert sorted(store.unreadable) == [5, 6]
    decoded = []
    monkeypatch.setattr(
        store_builder, "decode_rows", lambda *task: decoded.extend(task[2]) or decode_rows(*task)
    )
    for _ in range(2):
        mended = built(catalog, tmp_path / "stores")
        assert (mended.path, sorted(mended.unreadable), decoded) == (store.path, [6], ["5.avif", "6.png"])
    assert contents(mended.path) == contents(built(catalog, tmp_path / "fresh").path)


def test_content_paths_and_settings_make_the_key(images, tmp_path):
    folder = tmp_path / "stores"
    first = built(images, folder)
    others = [
        built(images, folder, size=9),
        built(images, folder, resize="pad"),
        built(catalog_of(images.root, images.paths[::-1]), folder),
    ]
    picture(50, 50, seed=99).save(images.root / "3.png")
    others.append(built(images, folder))
    assert len({first.path, *(other.path for other in others)}) == 5
    assert (others[-1].pixels[3] != first.pixels[3]).any()
    assert (others[-1].pixels[4] == first.pixels[4]).all()


def build(root, folder, rows, said, limit=resource.RLIM_INFINITY):
    """Build a store in a process of its own, and write to `said` where it is, or what was wrong."""
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        text = built(repeated(root, rows), folder, size=64, workers=2).path
    except OSError as error:
        text = error
    said.write_text(str(text))


def repeated(root, rows):
    return catalog_of(root, [f"{row % 16}.jpg" for row in range(rows)])


@pytest.fixture
def photographs(tmp_path):
    root = tmp_path / "photographs"
    root.mkdir()
    for index in range(16):
        picture(700, 700, seed=index).save(root / f"{index}.jpg")
    return root


def children(pid):
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def test_a_build_killed_in_the_middle_goes_on_where_it_stopped(photographs, tmp_path, monkeypatch):
    rows, folder = CHUNK * 12 + 5, tmp_path / "stores"
    process = CONTEXT.Process(target=build, args=(photographs, folder, rows, tmp_path / "said"))
    process.start()
    wait_for(
        lambda: any(journal.read_bytes().count(b"\n") >= 3 for journal in folder.glob("building-*/journal"))
    )
    workers = children(process.pid)
    process.kill()
    process.join()
    assert len(workers) == 2
    wait_for(lambda: not any(map(alive, workers)))
    assert stores_in(folder) == []
    (lock,) = folder.glob("building-*.lock")  # the file stays, but nobody holds the lock
    (journal,) = folder.glob("building-*/journal")
    assert lock.with_suffix("") == journal.parent
    finished = journal.read_bytes().count(b"\n")
    assert 3 <= finished < 13
    with journal.open("ab") as file:
        file.write(b'[640, [[1, 2, "half a li')

    catalog = repeated(photographs, rows)
    decoded = []
    real = store_builder.decode_rows
    monkeypatch.setattr(store_builder, "decode_rows", lambda *task: decoded.append(task) or real(*task))
    resumed = built(catalog, folder, size=64)
    assert len(decoded) == 13 - finished
    assert stores_in(folder) == [resumed.path]
    assert list(folder.glob("building-*")) == []
    whole = built(catalog, tmp_path / "unbroken", size=64)
    assert whole.path.name == resumed.path.name
    assert contents(whole.path) == contents(resumed.path)


def test_a_chunk_whose_files_changed_is_not_reused(images, tmp_path, monkeypatch):
    many = catalog_of(images.root, images.paths[:1] * CHUNK + images.paths[1:2] * CHUNK)
    folder = tmp_path / "stores"
    stop_at("1.png", monkeypatch, many, folder)
    picture(44, 44, seed=7).save(images.root / "0.png")
    resumed, fresh = built(many, folder), built(many, tmp_path / "fresh")
    assert contents(resumed.path) == contents(fresh.path)


def test_two_processes_that_build_the_same_store_give_one_store(photographs, tmp_path):
    folder = tmp_path / "stores"
    said = [tmp_path / "one", tmp_path / "two"]
    assert run_processes(build, *((photographs, folder, CHUNK * 6, file) for file in said)) == [0, 0]
    (store,) = folder.iterdir()
    assert [file.read_text() for file in said] == [str(store)] * 2
    alone = built(repeated(photographs, CHUNK * 6), tmp_path / "alone", size=64)
    assert contents(store) == contents(alone.path)


def build_many(catalog, folder, rounds, barrier, results):
    for number in range(rounds):
        barrier.wait()
        try:
            results.put(
                (
                    number,
                    Builder(catalog, folder / str(number), Framing(4), 0, progress=False).find_or_build(),
                )
            )
        except Exception as error:
            results.put((number, repr(error)))


def test_processes_that_start_at_the_same_moment_agree(images, tmp_path):
    fork, rounds, count = multiprocessing.get_context("fork"), 20, 5
    barrier, results = fork.Barrier(count), fork.Queue()
    task = (images, tmp_path, rounds, barrier, results)
    processes = [fork.Process(target=build_many, args=task) for _ in range(count)]
    for process in processes:
        process.start()
    paths = {results.get(timeout=60) for _ in range(rounds * count)}
    for process in processes:
        process.join()
    assert paths == {(number, *(tmp_path / str(number)).iterdir()) for number in range(rounds)}


def test_a_second_process_says_that_it_waits(images, tmp_path, capfd):
    (tmp_path / "stores").mkdir()
    builder = Builder(images, tmp_path / "stores", Framing(4), 0)
    held, release = threading.Event(), threading.Event()

    def hold():
        with exclusive(builder._building):
            held.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    timer = threading.Timer(0.3, release.set)
    timer.start()
    store = builder.find_or_build()
    assert release.is_set()
    holder.join()
    timer.join()
    assert list((tmp_path / "stores").iterdir()) == [store]
    message = "another process is building the same pixel store; waiting for it"
    assert " ".join(capfd.readouterr().err.split()).count(message) == 1


def test_a_lock_excludes_others_although_its_file_is_removed_each_time(tmp_path):
    fork, count, rounds = multiprocessing.get_context("fork"), 4, 50
    (tmp_path / "number").write_text("0")

    def add():
        for _ in range(rounds):
            with exclusive(tmp_path / "number"):
                number = int((tmp_path / "number").read_text())
                time.sleep(0.0005)
                (tmp_path / "number").write_text(str(number + 1))

    processes = [fork.Process(target=add) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * count
    assert (tmp_path / "number").read_text() == str(count * rounds)
    assert [path.name for path in tmp_path.iterdir()] == ["number"]


def test_without_locks_a_store_is_opened_but_not_built(images, tmp_path, monkeypatch):
    def no_locks(*_, **__):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    store = built(images, tmp_path / "stores")
    before = contents(store.path)
    os.utime(images.root / "2.png", ns=(1, 1))
    monkeypatch.setattr("filelock.FileLock.acquire", no_locks)
    assert built(images, tmp_path / "stores").path == store.path
    assert contents(store.path) == before
    with pytest.raises(OSError, match="No locks available; choose another folder"):
        built(images, tmp_path / "stores", size=9)
    assert stores_in(tmp_path / "stores") == [store.path]


def test_a_store_in_a_read_only_folder_is_opened():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        picture().save(root / "a.png")
        store = built(catalog_of(root, ["a.png"]), root / "stores")
        before = contents(store.path)
        os.utime(root / "a.png", ns=(1, 1))
        for folder in (root / "stores", store.path):
            folder.chmod(0o555)
        with ordinary_user():
            assert built(catalog_of(root, ["a.png"]), root / "stores").path == store.path
        assert contents(store.path) == before


def test_a_file_size_limit_leaves_one_line_and_nothing_else(photographs, tmp_path):
    folder = tmp_path / "stores"
    assert run_processes(build, (photographs, folder, 100, tmp_path / "said", 2**19)) == [0]
    (said,) = (tmp_path / "said").read_text().splitlines()
    assert f"cannot write a pixel store to '{folder}': File too large; free " in said
    assert re.search(r"free [1-9][0-9.]* (kB|MB) or choose", said)
    assert list(folder.iterdir()) == []


def test_a_disk_that_fills_up_leaves_no_store(images, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = store_builder.decode_rows
    monkeypatch.setattr(store_builder, "decode_rows", full)
    with pytest.raises(OSError, match=r"No space left on device; free 960 bytes") as caught:
        built(images, tmp_path / "stores")
    assert caught.value.errno == errno.ENOSPC
    assert "\n" not in str(caught.value)
    assert stores_in(tmp_path / "stores") == []
    monkeypatch.setattr(store_builder, "decode_rows", real)
    assert built(images, tmp_path / "stores").ok.all()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        picture().save(root / "a.png")
        (root / "locked").mkdir()
        (root / "locked").chmod(0o555)
        root.chmod(0o755)
        catalog = catalog_of(root, ["a.png"])
        with (
            ordinary_user(),
            pytest.raises(PermissionError, match="locked': Permission denied; choose another") as caught,
        ):
            built(catalog, root / "locked")
        assert "\n" not in str(caught.value)
        assert list((root / "locked").iterdir()) == []


def test_a_worker_killed_by_chance_is_replaced(photographs, tmp_path):
    catalog = catalog_of(photographs, [f"{row % 16}.jpg" for row in range(CHUNK * 8)])
    before = set(children(os.getpid()))

    def kill_one():
        wait_for(lambda: len(set(children(os.getpid())) - before) == 2)
        os.kill((set(children(os.getpid())) - before).pop(), signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    store = built(catalog, tmp_path / "stores", size=64, workers=2)
    killer.join()
    assert (len(store), store.unreadable) == (CHUNK * 8, {})
    assert set(children(os.getpid())) == before


def test_workers_say_how_they_ended_and_are_light():
    with Workers(1) as workers:
        assert workers.submit(file_state, "nowhere.jpg").result() == (-1, -1)
        modules = workers.submit(eval, "sorted(__import__('sys').modules)").result()
        assert "firstpage.data.framing" in modules
        assert not {"torch", "numpy", "rich", "filelock"} & set(modules)
        with pytest.raises(ZeroDivisionError):
            workers.submit(divmod, 1, 0).result()
        assert workers.submit(max, 1, 2).result() == 2
        with pytest.raises(RuntimeError, match="exit status 3"):
            workers.submit(os._exit, 3).result()
    with pytest.raises(ValueError, match="workers=-1"):
        Workers(-1)


def test_workers_need_no_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from firstpage.data.workers import Workers\nwith Workers(2) as w: print(dict(w.map(max, [(1, 2)])))"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("{0: 2}\n", "")


def test_batches(images, tmp_path):
    picture().save(images.root / "5.jpg")
    (images.root / "5.jpg").write_bytes((images.root / "5.jpg").read_bytes()[:500])
    store = built(catalog_of(images.root, [*images.paths, "5.jpg"]), tmp_path / "stores")
    for rows in ([3, 0, 3], np.array([3, 0, 3], np.int32), torch.tensor([3, 0, 3])):
        batch = store.batch(rows).pixels
        assert (batch.dtype, batch.device.type) == (torch.uint8, "cpu")
        np.testing.assert_array_equal(batch.numpy(), store.pixels[[3, 0, 3]])
    batch.fill_(0)
    assert store.pixels[3].any()
    assert store.batch([]).pixels.shape == (0, 8, 8, 3)
    for mask in (store.ok, store.ok.tolist(), torch.from_numpy(store.ok)):
        with pytest.raises(IndexError, match=r"rows is a boolean mask; use np.flatnonzero\(mask\)"):
            store.batch(mask)
    with pytest.raises(IndexError, match=r"row -1 is outside 0…5"):
        store.batch([0, -1])
    with pytest.raises(
        ValueError, match=r"rows \[5\] are unreadable \(5: Truncated File Read\); select rows with store.ok"
    ):
        store.batch([0, 5])
    assert [len(batch) for batch in store.batches([[0], [1, 2]])] == [1, 2]


def test_a_store_that_fits_the_device_lives_there(images, tmp_path, monkeypatch):
    store = built(images, tmp_path / "stores")
    expected = store.batch([4, 1]).pixels
    monkeypatch.setattr(store_module, "_free_bytes", lambda device: 2 * store.pixels.nbytes)
    monkeypatch.setattr(store_module, "COPY_BYTES", 3 * store.pixels[0].nbytes)
    assert store.to("cpu") is store
    monkeypatch.setattr(store, "_from_file", lambda *_: pytest.fail("read from the file"))
    assert torch.equal(store.batch([4, 1]).pixels, expected)
    assert torch.equal(store.batch(torch.tensor([4, 1]), device="cpu").pixels, expected)
    monkeypatch.undo()
    monkeypatch.setattr(store_module, "_free_bytes", lambda device: 2 * store.pixels.nbytes - 2)
    read = []
    monkeypatch.setattr(store, "_from_file", lambda rows, device: read.append(len(rows)))
    store.to("cpu").batch([4, 1])
    assert read == [2]


def test_a_stream_gives_what_the_store_gives(images, tmp_path):
    boxes = np.tile(np.array([2, 2, 20, 15], np.float32), (5, 1))
    catalog = catalog_of(images.root, images.paths, boxes)
    settings = {"size": 8, "resize": "pad", "boxes": True, "margin": 0.1}
    store = built(catalog, tmp_path / "stores", **settings)
    plan = [[0, 1, 2], [4], [], [3, 3, 1, 0, 2, 4, 4], [2]]
    for workers in (0, 2):
        with Stream(catalog, workers=workers, **settings) as stream:
            folder = Path(stream._folder.name)
            for rows, batch in zip(plan, stream.batches(plan), strict=True):
                assert same(batch, store.batch(rows))
            assert same(stream.batch([1]), store.batch([1]))
            early = stream.batches([[0]] * 9)
            next(early)
            early.close()
            assert list(folder.iterdir()) == []
            assert same(stream.batch([2, 0]), store.batch([2, 0]))
            with pytest.raises(IndexError, match="row 5"):
                stream.batch([5])
        assert not folder.exists()


def test_a_stream_names_the_image_it_cannot_read(images):
    (images.root / "3.png").write_bytes(b"no image")
    with Stream(images, size=8, workers=0) as stream, pytest.raises(Unreadable, match=r"3.png: not an image"):
        stream.batch([0, 3])
    with Stream(images, size=8, workers=0) as stream:
        with pytest.raises(Unreadable):
            stream.batch([0, 3])
        assert list(Path(stream._folder.name).iterdir()) == []


def test_arguments(images, tmp_path):
    for settings, message in [
        ({"size": 0}, "size=0: must be at least 1"),
        ({"resize": "crop"}, "resize='crop': must be one of shorter, squash, pad"),
        ({"margin": -0.1}, "margin=-0.1: must be at least 0"),
        ({"workers": -2}, "workers=-2: must be at least 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            built(catalog_of(images.root, images.paths * CHUNK), tmp_path / "stores", **settings)
    with pytest.raises(ValueError, match="has no images"):
        built(catalog_of(images.root, []), tmp_path / "stores")
    store = built(images, tmp_path / "stores")
    about = json.loads((store.path / "store.json").read_text())
    (store.path / "store.json").write_text(json.dumps(about | {"version": 0}))
    with pytest.raises(ValueError, match="store of version 0, expected 3; build it again"):
        PixelStore(store.path)
    shutil.rmtree(store.path)
    with pytest.raises(FileNotFoundError, match=r"not a pixel store; make one with PixelStore\.build"):
        PixelStore(store.path)


def mended(catalog, folder, match):
    """Build a store that is there but damaged; return it and the files that were decoded."""
    decoded, real = [], store_builder.decode_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_builder, "decode_rows", lambda *task: decoded.extend(task[2]) or real(*task))
        with pytest.warns(UserWarning, match=match) as caught:
            store = built(catalog, folder)
    (warning,) = caught
    assert str(warning.message).isprintable()
    return store, decoded


def half_zeroed(content):
    return content[: len(content) // 2] + bytes(len(content) - len(content) // 2)


@pytest.mark.parametrize(
    ("damage", "rows"),
    [
        (half_zeroed, [2, 3, 4]),
        (lambda content: content[:200], [1, 2, 3, 4]),
        (lambda content: b"", [0, 1, 2, 3, 4]),
        (lambda content: content[:400] + bytes([content[400] ^ 1]) + content[401:], [2]),
        (lambda content: content[192:] + content[:192], [0, 1, 2, 3, 4]),
    ],
    ids=["half zeroed", "cut", "empty", "one bit", "rows in another order"],
)
def test_damaged_pixels_are_told_and_decoded_again(images, tmp_path, damage, rows):
    store = built(images, tmp_path / "stores")
    before = contents(store.path)
    (store.path / "pixels.bin").write_bytes(damage(before["pixels.bin"]))
    message = rf"the pixel store is damaged \({len(rows)} of 5 rows, the first is {rows[0]}\)"
    with pytest.raises(UserError, match=message + "; build it again with PixelStore.build"):
        PixelStore(store.path)
    again, decoded = mended(images, tmp_path / "stores", message + "; decoding them again")
    assert decoded == [images.paths[row] for row in rows]
    assert (again.path, contents(again.path)) == (store.path, before)


def sealed(change):
    """Of store.json: with a right checksum, as a stranger may write it."""

    def damage(content):
        about = json.loads(content)
        about.pop("checksum")
        about |= change
        return json.dumps(about | {"checksum": json_checksum(about)}).encode()

    return damage


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("store.json", half_zeroed),
        ("store.json", lambda content: b""),
        ("store.json", lambda content: b"[" * 100_000),
        ("store.json", lambda content: content.replace(b'"unreadable": {}', b'"unreadable": {"3": "gone"}')),
        ("store.json", lambda content: content.replace(b'"images": 5', b'"images": "5"')),
        ("store.json", sealed({"unreadable": {"7": "beyond the end"}})),
        ("store.json", sealed({"unreadable": {"1": 2}})),
        ("store.json", sealed({"framing": {"size": 8}})),
        ("store.json", sealed({"framing": {"size": "8", "resize": "pad", "boxes": False, "margin": 0.0}})),
        ("store.json", sealed({"images": 10**15})),
        ("files.bin", half_zeroed),
        ("files.bin", lambda content: content[:-1]),
        ("files.bin", lambda content: b""),
    ],
    ids=range(13),
)
def test_a_damaged_index_is_told_and_the_store_built_again(images, tmp_path, name, damage):
    store = built(images, tmp_path / "stores")
    before = contents(store.path)
    (store.path / name).write_bytes(damage(before[name]))
    assert (store.path / name).read_bytes() != before[name]
    with pytest.raises(UserError, match=r"the pixel store is damaged .*; build it again") as caught:
        PixelStore(store.path)
    assert str(caught.value).isprintable()
    again, decoded = mended(images, tmp_path / "stores", "the pixel store is damaged .*; building it again")
    assert decoded == images.paths
    assert list((tmp_path / "stores").iterdir()) == [store.path]
    assert (again.path, contents(again.path)) == (store.path, before)


def test_a_store_without_a_file_is_built_again(images, tmp_path):
    for name in ("pixels.bin", "files.bin", "store.json"):
        store = built(images, tmp_path / "stores")
        before = contents(store.path)
        (store.path / name).unlink()
        again, _ = mended(images, tmp_path / "stores", "pixel store")
        assert (again.path, contents(again.path)) == (store.path, before)


def test_mutated_stores_are_never_used(images, tmp_path):
    store = built(images, tmp_path / "stores")
    before, pixels = contents(store.path), store.pixels.copy()
    random, told = np.random.default_rng(0), 0
    for _ in range(150):
        name = random.choice(sorted(before))
        content = bytearray(before[name])
        for place in random.integers(0, len(content), random.integers(1, 4)):
            content[place] = random.integers(0, 256)
        (store.path / name).write_bytes(content[: random.integers(0, 2 * len(content))])
        try:
            opened = PixelStore(store.path)
        except UserError as error:
            told += str(error).isprintable()
        else:
            told += 1
            assert (opened.pixels == pixels).all()
            assert opened.unreadable == {}
        (store.path / name).write_bytes(before[name])
    assert told == 150


def test_an_interrupted_build_does_not_go_on_with_damaged_pixels(images, tmp_path, monkeypatch):
    catalog = catalog_of(images.root, images.paths[:1] * CHUNK + images.paths[1:2] * CHUNK)
    stop_at("1.png", monkeypatch, catalog, tmp_path / "stores")
    (building,) = (tmp_path / "stores").glob("building-*")
    with open(building / "pixels.bin", "r+b") as file:
        file.write(bytes(100))
    with open(building / "journal", "ab") as file:
        file.write(b'00000000 [64, "mutated"]\n{}\n\xff\n')
    fresh = built(catalog, tmp_path / "fresh")
    assert contents(built(catalog, tmp_path / "stores").path) == contents(fresh.path)
