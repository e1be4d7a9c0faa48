"""Embeddings that are kept: each image is embedded once, and never wrongly."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from firstpage.data import Catalog, PixelStore
from firstpage.models import Embedder, embedding_cache
from firstpage.models.embedding_cache import embed_cached


@pytest.fixture
def store(tmp_path):
    return build(tmp_path)


def build(tmp_path, seed=0):
    random = np.random.default_rng(seed)
    names = [f"{number}.png" for number in range(6)]
    for name in names:
        Image.fromarray(random.integers(0, 256, (40, 40, 3), np.uint8)).save(tmp_path / name)
    catalog = Catalog("toy", tmp_path, names, np.zeros(6, int), ["a"], {})
    return PixelStore.build(catalog, tmp_path / "cache", size=32, workers=0, progress=False)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Embedder.create(backbone="small", dim=4, stored=32)


@pytest.fixture
def embedded(monkeypatch):
    """The number of images of each call of the network."""
    counts, embed = [], Embedder.embed

    def count(self, images, *, rows, **options):
        counts.append(len(rows))
        return embed(self, images, rows=rows, **options)

    monkeypatch.setattr(Embedder, "embed", count)
    return counts


def get(model, store, rows, half=None, flip=False):
    cache = store.path.parent
    return embed_cached(model, store, np.array(rows), cache=cache, half=half, flip=flip, progress=False)


def files(store):
    return sorted((store.path.parent / "embeddings").iterdir())


def test_averages_over_mirror_images_are_kept_apart(model, store, embedded):
    plain, average = get(model, store, [0, 1]), get(model, store, [0, 1], flip=True)
    assert not torch.allclose(plain, average)
    assert torch.equal(get(model, store, [0, 1]), plain)
    assert torch.equal(get(model, store, [0, 1], flip=True), average)
    assert embedded == [2, 2]


def test_an_image_is_embedded_once(model, store, embedded):
    expected = model.embed(store, rows=np.arange(6), progress=False)
    first = get(model, store, [4, 1])
    assert torch.equal(first, get(model, store, [4, 1]))
    torch.testing.assert_close(get(model, store, [0, 1, 4, 5]), expected[[0, 1, 4, 5]])
    torch.testing.assert_close(get(model, store, [5, 0]), expected[[5, 0]])
    assert embedded == [6, 2, 2]
    assert len(files(store)) == 1


def test_what_the_values_depend_on_is_embedded_anew(model, store, embedded, tmp_path):
    get(model, store, [0, 1])
    get(model, store, [0, 1], half=True)
    with torch.no_grad():
        model.heads[0][-1].bias += 1
    moved = get(model, store, [0, 1])
    torch.testing.assert_close(moved, model.embed(store, rows=np.arange(2), progress=False))
    changed = build(tmp_path, seed=1)  # other images of the same names
    get(model, changed, [0, 1])
    assert embedded == [2, 2, 2, 2, 2]
    assert len(files(store)) == 4


@pytest.mark.parametrize("damage", ["bit", "cut", "empty", "text", "folder"])
def test_a_damaged_file_is_made_again_with_one_line(model, store, embedded, damage):
    expected = get(model, store, [0, 1, 2])
    (file,) = files(store)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.unlink()
    if damage == "folder":
        file.mkdir()
    else:
        made = {"bit": content, "cut": content[:-7], "empty": b"", "text": b'{"rows": -1, "digest": 1}\n'}
        file.write_bytes(made[damage])
    with pytest.warns(
        UserWarning, match="the kept embeddings are damaged; embedding the images again"
    ) as told:
        torch.testing.assert_close(get(model, store, [0, 1, 2]), expected)
    assert len(told) == 1
    if damage != "folder":
        torch.testing.assert_close(get(model, store, [2]), expected[2:])
        assert embedded == [3, 3]


def test_the_least_recently_used_is_removed(model, store, embedded, monkeypatch):
    rows = list(range(6))
    get(model, store, rows)
    (first,) = files(store)
    monkeypatch.setattr(embedding_cache, "LIMIT", 2 * first.stat().st_size + 100)
    get(model, store, rows, half=True)
    (second,) = {*files(store)} - {first}
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    get(model, store, rows)  # used again
    with torch.no_grad():
        model.heads[0][-1].bias += 1
    get(model, store, rows)
    assert second not in files(store)
    assert first in files(store)
    assert len(files(store)) == 2
    monkeypatch.setattr(embedding_cache, "LIMIT", 100)
    get(model, store, rows, half=True)  # too large to be kept
    assert len(files(store)) == 2
    assert embedded == [6, 6, 6, 6]


def test_nan_and_what_code_of_your_own_embeds_is_not_kept(model, store, embedded):
    own = Embedder.create(backbone="firstpage.models.backbones.small:Small", dim=4, stored=32)
    for _ in range(2):
        get(own, store, [0])
    model.heads[0][-1].bias.data.fill_(float("nan"))
    for _ in range(2):
        get(model, store, [0])
    assert embedded == [1, 1, 1, 1]


def test_a_folder_that_cannot_be_written_is_no_error(model, store, embedded):
    (store.path.parent / "embeddings").touch()
    with pytest.warns(UserWarning, match="damaged"):
        assert get(model, store, [0]).shape == (1, 4)
