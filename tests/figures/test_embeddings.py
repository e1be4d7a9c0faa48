"""Figures from embeddings: blocked searches against naive loops, maps, and files."""

import io
import random
import sys
import zipfile

import numpy as np
import pytest
import torch

from firstpage import figures
from firstpage.data.catalog import Catalog
from firstpage.errors import UserError
from firstpage.evaluation import evaluate


@pytest.fixture
def points():
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 9, (83,), generator=generator)
    labels[0] = 50  # the only one of its class
    centers = torch.randn(51, 6, generator=generator)
    return centers[labels] + torch.randn(83, 6, generator=generator), labels


def cosine(one, two):
    return float(one @ two / (one.norm() * two.norm()))


@pytest.mark.parametrize("block", [7, 83, 1000])
def test_same_class_similarity_counts_every_pair_once(points, block):
    embeddings, labels = points
    pairs = [
        cosine(embeddings[i], embeddings[j]) for i in range(83) for j in range(i) if labels[i] == labels[j]
    ]
    expected, expected_edges = np.histogram(pairs, bins=20, range=(-1, 1), density=True)
    edges, density = figures.same_class_similarity(embeddings, labels, bins=20, block=block)
    assert np.allclose(edges, expected_edges)
    assert np.allclose(density, expected)


def test_copies_of_an_image_fall_into_the_last_bin():
    _, density = figures.same_class_similarity(torch.rand(1, 5).repeat(9, 1), torch.zeros(9).long(), bins=10)
    assert density.tolist() == [0.0] * 9 + [5.0]


@pytest.mark.parametrize("block", [7, 1000])
def test_nearest_train_against_a_loop(points, block):
    embeddings, _ = points
    test, train = embeddings[:30], embeddings[30:]
    expected = [max(cosine(one, other) for other in train) for one in test]
    assert torch.allclose(figures.nearest_train(test, train, block=block), torch.tensor(expected), atol=1e-6)


@pytest.mark.parametrize("block", [7, 1000])
def test_nearest_by_class_against_a_loop(points, block):
    embeddings, labels = points
    same, other = [], []
    for i in range(1, 83):  # 0 is alone
        near = {True: -2.0, False: -2.0}
        for j in range(83):
            if i != j:
                kind = bool(labels[i] == labels[j])
                near[kind] = max(near[kind], cosine(embeddings[i], embeddings[j]))
        same.append(near[True])
        other.append(near[False])
    found = figures.nearest_by_class(embeddings, labels, block=block)
    assert torch.allclose(found[0], torch.tensor(same), atol=1e-6)
    assert torch.allclose(found[1], torch.tensor(other), atol=1e-6)


def test_the_share_below_the_diagonal_is_precision_at_one(points):
    same, other = figures.nearest_by_class(*points)
    share = 100 * (same > other).double().mean().item()
    assert share == pytest.approx(evaluate(*points, ks=(1,)).precision[1])
    figure = figures.plot_nearest_classes({"test": (same, other)})
    right, wrong = figure.axes[0].collections
    assert len(right.get_offsets()) == int((same > other).sum())
    assert len(wrong.get_offsets()) == int((same <= other).sum())


def test_points_lie_at_same_and_other(points):
    same, other = figures.nearest_by_class(*points)
    axes = figures.plot_nearest_classes({"test": (same, other)}).axes[0]
    for drawn, mask in zip(axes.collections, (same > other, same <= other), strict=True):
        assert np.allclose(drawn.get_offsets(), torch.stack([same[mask], other[mask]], dim=1))


def test_curves_are_drawn_along_their_axes():
    across, up = torch.tensor([0.0, 0.25, 1.0]), torch.tensor([0.5, 0.75, 1.0])
    for plot, names in (
        (figures.plot_precision_recall, ("recall", "precision")),
        (figures.plot_roc, ("false positive rate", "true positive rate")),
    ):
        axes = plot({"one": (across, up)}).axes[0]
        assert (axes.get_xlabel(), axes.get_ylabel()) == names
        assert np.array_equal(axes.lines[0].get_xdata(), across)
        assert np.array_equal(axes.lines[0].get_ydata(), up)


def test_outlines_are_those_of_the_histograms(points):
    embeddings, labels = points
    edges, density = figures.same_class_similarity(embeddings, labels, bins=20)
    (outline,) = figures.plot_class_similarity({"one": (edges, density)}).axes[0].patches
    assert np.array_equal(outline.get_data().values, density)
    assert np.array_equal(outline.get_data().edges, edges)
    near = figures.nearest_train(embeddings[:30], embeddings[30:])
    (outline,) = figures.plot_train_similarity({"one": near}, bins=20).axes[0].patches
    expected, expected_edges = np.histogram(near, bins=20, range=(-1, 1), density=True)
    assert not np.array_equal(expected, expected[::-1])
    assert np.allclose(outline.get_data().values, expected)
    assert np.allclose(outline.get_data().edges, expected_edges)


def test_empty_cases_are_named(points):
    embeddings, _ = points
    with pytest.raises(ValueError, match="no class has two images"):
        figures.same_class_similarity(embeddings, torch.arange(83))
    with pytest.raises(ValueError, match="no image has both"):
        figures.nearest_by_class(embeddings, torch.zeros(83).long())
    with pytest.raises(ValueError, match="test has 0 rows"):
        figures.nearest_train(embeddings[:0], embeddings)


def test_searches_never_hold_all_similarities(points):
    """4,000 images in blocks of 50 make no tensor of 4,000 × 4,000, nor anything near it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                Largest.size = max(Largest.size, result.numel())
            return result

    embeddings, labels = torch.randn(4000, 4), torch.arange(4000) % 2
    with Largest():
        figures.nearest_by_class(embeddings, labels, block=50)
        figures.nearest_train(embeddings, embeddings, block=50)
        figures.same_class_similarity(embeddings, labels, block=50)
        figures.sampled_distances(embeddings, labels, ["hard"], samples=1, block=50)
    assert 50 * 4000 <= Largest.size <= 2 * 50 * 4000


def test_thumbnails_are_the_nearest_to_each_cell_and_stand_near_their_place():
    positions = np.random.default_rng(0).normal(size=(400, 2)) * [3, 1]
    cells = 12
    rows, places = figures.spread_thumbnails(positions, cells)
    low, side = positions.min(axis=0), np.ptp(positions, axis=0).max()
    scaled = (positions - low) / side * cells
    assert len({tuple(place) for place in places.tolist()}) == len(rows)
    for row, place in zip(rows, places, strict=True):
        inside = [i for i in range(400) if (np.minimum(np.floor(scaled[i]), cells - 1) == place).all()]
        assert row == min(inside, key=lambda i: np.square(scaled[i] - place - 0.5).sum())
    occupied = {tuple(np.minimum(np.floor(spot), cells - 1).astype(int)) for spot in scaled}
    assert {tuple(place) for place in places.tolist()} == occupied


def test_the_map_shows_each_picture_at_its_place():
    positions = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    figure = figures.plot_embedding_map(
        positions, np.arange(3), lambda row: np.full((8, 8, 3), 50 * row + 50, np.uint8), cells=2, side=4
    )
    sheet = figure.axes[0].images[0].get_array()
    assert sheet[6, 2].tolist() == [50, 50, 50, 255]  # lower left
    assert sheet[6, 6].tolist() == [100, 100, 100, 255]
    assert sheet[2, 6].tolist() == [150, 150, 150, 255]
    assert sheet[2, 2, 3] == 0  # nothing there


def test_tsne_keeps_classes_together():
    pytest.importorskip("openTSNE", reason="openTSNE is not installed: pip install 'firstpage[tsne]'")
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    embeddings = torch.eye(8)[labels] + 0.1 * torch.randn(90, 8, generator=generator)
    one, two = (figures.map_positions(embeddings) for _ in "ab")
    assert one.shape == (90, 2)
    assert np.array_equal(one, two)  # a seed gives one map
    distance = np.linalg.norm(one[:, None] - one[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    assert (labels.numpy()[distance.argmin(axis=1)] == labels.numpy()).all()


@pytest.mark.parametrize("vector", [torch.ones(8), torch.eye(8)[0]])
def test_embeddings_that_are_all_the_same_lie_in_one_place(vector):
    pytest.importorskip("openTSNE", reason="openTSNE is not installed: pip install 'firstpage[tsne]'")
    positions = figures.map_positions(vector.repeat(40, 1))
    assert np.array_equal(positions, np.zeros((40, 2)))
    figure = figures.plot_embedding_map(positions, np.arange(40), lambda row: np.ones((4, 4, 3), np.uint8))
    figure.savefig(io.BytesIO(), format="png")


def test_without_tsne_the_remedy_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    with pytest.raises(ValueError, match=r"^openTSNE is not installed: pip install 'firstpage\[tsne\]'$"):
        figures.map_positions(torch.eye(8))


@pytest.fixture
def dataset(tmp_path):
    paths = [f"{row}.png" for row in range(8)]
    splits = {"train": np.arange(4), "query": np.array([4, 5]), "gallery": np.array([0, 6, 7])}
    catalog = Catalog("x", tmp_path, paths, np.arange(8) // 2, list("abcd"), splits)
    order = [7, 0, 1, 2, 3, 4, 6]  # another order, and 5 could not be read
    np.savez(
        tmp_path / "x.npz",
        embeddings=np.eye(8, dtype=np.float32)[order],
        labels=catalog.labels[order],
        paths=np.array([paths[row] for row in order]),
    )
    return catalog, tmp_path / "x.npz"


def test_splits_are_found_by_path(dataset):
    catalog, path = dataset
    whole = figures.read_embeddings(path, catalog)
    assert whole.split("train").rows.tolist() == [0, 1, 2, 3]
    assert whole.split("test").rows.tolist() == [4, 6, 7]  # searched, but not for training
    assert whole.split("train").embeddings.argmax(dim=1).tolist() == [0, 1, 2, 3]
    assert whole.split("test").embeddings.argmax(dim=1).tolist() == [4, 6, 7]
    assert whole.split("test").labels.tolist() == [2, 3, 3]
    assert whole.subsample(3).rows.tolist() == [7, 2, 6]


def test_files_that_do_not_fit_are_named(dataset, tmp_path):
    catalog, path = dataset
    other = Catalog("x", tmp_path, ["a.png"], np.zeros(1, int), ["a"], {})
    with pytest.raises(ValueError, match=r"7\.png' is not in .*: pass the dataset it was made from"):
        figures.read_embeddings(path, other)
    with pytest.raises(ValueError, match="pass the dataset too"):
        figures.read_embeddings(path).split("train")
    with pytest.raises(ValueError, match="split='val': the dataset has train, query, gallery"):
        figures.read_embeddings(path, catalog).split("val")
    (tmp_path / "broken.npz").write_bytes(b"not a zip")
    with pytest.raises(
        ValueError, match=r"broken\.npz: BadZipFile: .*: write the file again with firstpage embed"
    ):
        figures.read_embeddings(tmp_path / "broken.npz")


ARRAYS = {
    "embeddings": np.eye(6, 4, dtype=np.float32) + 1,
    "labels": np.arange(6) // 2,
    "paths": np.array([f"{number}.png" for number in range(6)]),
}


def npy(array, shape=None, dtype=None):
    """Return an .npy file of an array that may declare another shape or type."""
    file = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array)
    header |= {} if shape is None else {"shape": shape}
    header |= {} if dtype is None else {"descr": dtype}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def write_npz(path, compression=zipfile.ZIP_STORED, **members):
    """Write an .npz file of the embeddings with some of them replaced; None leaves one out."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, value in (ARRAYS | members).items():
            if value is not None:
                file.writestr(f"{name}.npy", value if isinstance(value, bytes) else npy(value))
    return path


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"paths": None}, "holds no paths"),
        ({"embeddings": np.full((6, 4), np.nan)}, "embeddings hold NaN or infinity"),
        ({"embeddings": np.full((6, 4), np.inf)}, "embeddings hold NaN or infinity"),
        ({"embeddings": np.ones(6)}, r"embeddings: got shape \(6,\), need \[images, dimensions\]"),
        ({"embeddings": np.ones((6, 4), int)}, "embeddings: got dtype torch.int64, need floats"),
        ({"embeddings": np.ones((5, 4))}, r"labels: got shape \(6,\), need shape \(5,\)"),
        ({"labels": np.ones(6)}, "labels: got dtype torch.float64, need integers"),
        ({"labels": np.array(list("abcdef"))}, "labels: got ndarray, not numbers"),
        ({"paths": np.arange(6)}, "paths: got int64 of shape"),
        ({"paths": ARRAYS["paths"][:5]}, r"paths: got <U5 of shape \(5,\)"),
        (
            {"embeddings": npy(ARRAYS["embeddings"], (10**12, 4))},
            r"embeddings.npy declares shape \(1000000000000",
        ),
        ({"paths": npy(ARRAYS["paths"], dtype="<U100000000")}, "paths.npy declares shape"),
        ({"labels": npy(ARRAYS["labels"], dtype="|O")}, "Object arrays cannot be loaded"),
        ({"labels": b"\x93NUMPY\x01\x00v\x00{'descr'"}, "labels|EOF|array header"),
    ],
)
def test_a_file_that_is_not_of_embed_is_one_line(tmp_path, members, complaint):
    path = write_npz(tmp_path / "x.npz", **members)
    with pytest.raises(UserError, match=rf"x\.npz: .*({complaint}).*: write the file again with") as caught:
        figures.read_embeddings(path)
    assert "\n" not in str(caught.value)


def test_a_small_file_of_many_zeros_takes_no_memory(tmp_path):
    path = write_npz(tmp_path / "x.npz", zipfile.ZIP_DEFLATED, embeddings=np.zeros((2**12, 2**8)))
    with pytest.raises(UserError, match="holds more than 100 bytes for each of its own"):
        figures.read_embeddings(path)
    assert len(figures.read_embeddings(write_npz(path, zipfile.ZIP_DEFLATED)).labels) == 6


def test_mutated_files_are_read_or_refused(tmp_path):
    written = [
        write_npz(tmp_path / "x.npz", method).read_bytes()
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    ]
    refused = []
    for seed in range(100):
        draw = random.Random(seed)
        data = bytearray(draw.choice(written))
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data))
            data[at : at + draw.choice([0, 1, 1, 9])] = draw.choice([b"", b"\0", b"\xff", b"(", b"9" * 9])
        (tmp_path / "x.npz").write_bytes(data)
        try:
            assert figures.read_embeddings(tmp_path / "x.npz").embeddings.isfinite().all()
        except UserError as error:
            refused.append(str(error))
    assert 50 < len(refused) < 100
    assert all(message.isprintable() for message in refused)
