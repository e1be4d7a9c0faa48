import hashlib
import importlib
import os
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageFilter

from firstpage.data import read
from firstpage.data.glyphs import draw_glyphs
from firstpage.errors import UserError
from support.children import CONTEXT

module = importlib.import_module("firstpage.data.glyphs")  # the package may export the function by its name


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """One image of each class, drawn once for this file."""
    return draw_glyphs(tmp_path_factory.mktemp("glyphs") / "one", images=1)


@pytest.fixture
def few(tmp_path_factory, monkeypatch):
    """One image of each of a few characters, which are all there are."""
    monkeypatch.setattr(module, "_TRAIN", {"latin": "41-5A 61-62"})
    monkeypatch.setattr(module, "_TEST", {"greek": "370 372-373 394"})
    return draw_glyphs(tmp_path_factory.mktemp("glyphs") / "few", images=1)


def digest(catalog):
    return hashlib.sha256(b"".join(catalog.path(row).read_bytes() for row in range(len(catalog)))).hexdigest()


def scripts():
    return {name: module._parse(ranges) for name, ranges in (module._TRAIN | module._TEST).items()}


def faces():
    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")
    return {face: module._load_face(fonts / f"{face}.ttf") for face in module._FACES}


def test_is_large_and_class_disjoint_by_script(one):
    assert len(one.classes) == len(set(one.classes)) >= 600
    train, test = (set(one.labels[one.splits[name]]) for name in ("train", "test"))
    assert not train & test
    assert len(train) >= 300
    assert len(test) >= 250
    assert train | test == set(range(len(one.classes)))
    assert not set(one.groups[one.splits["train"]]) & set(one.groups[one.splits["test"]])
    for label, name in zip(one.labels, one.classes, strict=True):
        script = one.group_names[one.groups[label]]
        assert script in name


def test_every_row_has_its_file_and_there_is_no_other(one):
    files = {path.relative_to(one.root).as_posix() for path in one.root.rglob("*.png")}
    assert files == set(one.paths)
    assert one.labels.dtype == np.int64
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in one.splits.values())


def test_images_are_small_color_pictures_with_something_on_them(one):
    for row in range(0, len(one), 7):
        with Image.open(one.path(row)) as image:
            assert (image.mode, image.size) == ("RGB", (48, 48))
            assert np.asarray(image.convert("L")).std() > 8


def test_has_at_least_sixteen_images_a_class_by_default():
    assert draw_glyphs.__kwdefaults__["images"] >= 16


def test_faces_take_turns_and_no_image_repeats(tmp_path):
    known = list(faces().values())
    module._draw(tmp_path / "a", ord("A"), known, images=16, seed=0)
    files = sorted((tmp_path / "a").iterdir())
    assert [file.name for file in files] == [f"{number:02d}.png" for number in range(16)]
    assert len({file.read_bytes() for file in files}) == 16


def test_every_character_is_a_letter_or_digit_of_its_script_in_four_faces_or_more():
    points = [known for _, known in faces().values()]
    for script, characters in scripts().items():
        assert characters == sorted(set(characters))
        for point in characters:
            assert unicodedata.name(chr(point)).lower().startswith(script)
            assert unicodedata.category(chr(point)) in ("Lu", "Ll", "Lo", "Nd")
            assert sum(point in known for known in points) >= 4


def clean(font, character):
    """A drawing without pose: its box fitted to 28 of 32 pixels, a little blurred, of mean 0 and norm 1."""
    mask = font.getmask(character, "L")
    image = Image.frombytes("L", mask.size, bytes(mask))
    image = image.crop(image.getbbox())
    scale = 28 / max(image.size)
    image = image.resize([max(1, round(side * scale)) for side in image.size], Image.Resampling.LANCZOS)
    square = Image.new("L", (32, 32))
    square.paste(image, ((32 - image.width) // 2, (32 - image.height) // 2))
    values = np.asarray(square.filter(ImageFilter.GaussianBlur(1.2)), np.float32).ravel()
    values = values - values.mean()
    return values / np.linalg.norm(values)


def test_no_two_classes_look_alike():
    fonts = [faces()[name][0] for name in ("DejaVuSans", "DejaVuSans-Bold")]
    points = [point for characters in scripts().values() for point in characters]
    drawings = np.stack([[clean(font, chr(point)) for point in points] for font in fonts])
    # Also normal against bold: a small capital is its capital in a heavier stroke.
    alike = np.einsum("aid,bjd->abij", drawings, drawings, optimize=True).max(axis=(0, 1))
    np.fill_diagonal(alike, 0)
    assert alike.max() < 0.93
    twins = [clean(fonts[0], character) for character in "AΑАSs"]
    assert min(twins[0] @ twins[1], twins[0] @ twins[2], twins[3] @ twins[4]) > 0.93


def test_is_deterministic_and_seeds_differ(few, tmp_path):
    assert digest(draw_glyphs(tmp_path / "again", images=1)) == digest(few)
    assert digest(draw_glyphs(tmp_path / "other", images=1, seed=1)) != digest(few)


def test_is_drawn_once(one, monkeypatch):
    monkeypatch.setattr(module, "_create", lambda *_: pytest.fail("drawn again"))
    assert draw_glyphs(one.root, images=1).paths == one.paths


def test_default_folder_is_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("FIRSTPAGE_CACHE", raising=False)  # it comes before the user's cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_draw", lambda folder, *_, **__: folder.mkdir(parents=True))
    catalog = draw_glyphs(images=2, seed=3)
    assert catalog.root.parent == tmp_path / "firstpage"
    assert catalog.root != draw_glyphs(images=2, seed=4).root


def test_refuses_a_folder_of_other_things_or_settings(one, tmp_path):
    with pytest.raises(ValueError, match=r"it contains .*'images': 1.*; use another folder"):
        draw_glyphs(one.root, images=2)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="it contains other files; use a new or empty folder"):
        draw_glyphs(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ValueError, match=r"images=0\): images must be at least 1"):
        draw_glyphs(tmp_path / "new", images=0)
    with pytest.raises(ValueError, match=r"seed=-1\): seed must not be negative"):
        draw_glyphs(tmp_path / "new", seed=-1)


def test_a_killed_run_leaves_no_folder_and_the_next_one_is_whole(few, tmp_path):
    process = CONTEXT.Process(target=draw_glyphs, args=(tmp_path / "glyphs",))  # that draws all of them
    process.start()
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".glyphs.*.part/latin/*/00.png")):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    assert not (tmp_path / "glyphs").exists()
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))
    assert digest(draw_glyphs(tmp_path / "glyphs", images=1)) == digest(few)
    assert [path.name for path in tmp_path.iterdir()] == ["glyphs"]  # what was left long ago is gone


def test_a_failed_run_leaves_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(module, "_paint", full)
    with pytest.raises(OSError, match="no space left"):
        draw_glyphs(tmp_path / "glyphs", images=1)
    assert not list(tmp_path.iterdir())


def test_two_at_once_both_get_the_whole(few, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: draw_glyphs(tmp_path / "glyphs", images=1), range(2)))
    assert digest(both[0]) == digest(both[1]) == digest(few)
    assert [path.name for path in tmp_path.iterdir()] == ["glyphs"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[1, 2]",
        b"null",
        b'{"version": 1}',
        b'{"version": 1, "images": "1", "seed": 0}',
        b'{"version": 1, "images": 1.5, "seed": 0}',
        b'{"version": 1, "images": 1000000000000, "seed": 0}',
        b'{"version": 1, "images": 0, "seed": 0}',
        b'{"version": 1, "images": 1, "seed": 0, "more": "\\u001b[2J"}',
    ],
    ids=range(12),
)
def test_damaged_settings_are_one_line(tmp_path, content):
    (tmp_path / "glyphs.json").write_bytes(content)
    for use in (lambda: draw_glyphs(tmp_path, images=1), lambda: read(tmp_path)):
        with pytest.raises(
            UserError, match=r"glyphs\.json: .*; remove its folder, and .* drawn again"
        ) as caught:
            use()
        assert str(caught.value).isprintable()


def test_settings_that_are_no_file_are_one_line(tmp_path):
    os.mkfifo(tmp_path / "glyphs.json")
    with pytest.raises(UserError, match=r"glyphs\.json: is a .* pipe .*, not a regular file; remove"):
        draw_glyphs(tmp_path, images=1)


def test_mutated_settings_are_read_or_refused(tmp_path):
    random, sound = np.random.default_rng(0), b'{"version": 1, "images": 1, "seed": 0}'
    for _ in range(200):
        content = bytearray(sound)
        for place in random.integers(0, len(content), random.integers(1, 4)):
            content[place] = random.integers(0, 256)
        (tmp_path / "glyphs.json").write_bytes(content[: random.integers(0, 2 * len(content))])
        with suppress(UserError):
            assert set(module.read_settings(tmp_path / "glyphs.json")) == {"version", "images", "seed"}
