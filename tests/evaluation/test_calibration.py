"""Calibration: probabilities that are true where the truth is known, thresholds that keep their promise."""

import json

import numpy as np
import pytest
import torch

from firstpage import cli
from firstpage.data import read
from firstpage.errors import UserError
from firstpage.evaluation import Calibration, calibration, fit_calibration
from firstpage.models.embedder import Embedder
from firstpage.models.embedding_cache import model_fingerprint
from firstpage.runs.calibrating import calibrate_model
from firstpage.search import Index
from support.striped import write_stripes


def histogram_of(scores, same, prior=None):
    """What `fit_calibration` would count if the comparisons had these cosines."""
    bins = ((scores + 1) * (calibration._FINE / 2)).astype(int)
    counts = [np.bincount(bins[which], minlength=calibration._FINE) for which in (same, ~same)]
    edges, right, wrong = calibration._coarsen(*counts)
    return Calibration(edges, right, wrong, float(same.mean()) if prior is None else prior)


def draw(truth, count=200_000, seed=0):
    random = np.random.default_rng(seed)
    scores = random.beta(2, 4, count) * 1.6 - 0.7
    return scores, random.random(count) < truth(scores)


@pytest.mark.parametrize(
    "truth",
    [
        lambda score: 1 / (1 + np.exp(-12 * (score - 0.3))),
        lambda score: np.clip(score, 0.02, 0.6),  # which no logistic curve follows
    ],
)
def test_probabilities_are_the_known_ones(truth):
    scores, same = draw(truth)
    fitted = histogram_of(scores, same)
    at = np.linspace(-0.4, 0.6, 21)
    np.testing.assert_allclose(fitted.probability(at), truth(at), atol=0.04)
    everywhere = fitted.probability(np.linspace(-1, 1, 999))
    assert (np.diff(everywhere) >= 0).all()
    assert 0 < everywhere[0] < everywhere[-1] < 1


def test_another_prior_moves_them_as_bayes_says():
    scores, same = draw(lambda score: 1 / (1 + np.exp(-12 * (score - 0.3))))
    rare = np.random.default_rng(1).random(len(scores)) < np.where(same, 0.1, 1)  # 9 of 10 same ones are lost
    told = histogram_of(scores, same, prior=float(same[rare].mean()))
    counted = histogram_of(scores[rare], same[rare])
    at = np.linspace(-0.2, 0.6, 17)
    np.testing.assert_allclose(told.probability(at), counted.probability(at), atol=0.05)
    np.testing.assert_allclose(told.rates(at)[2], counted.rates(at)[2], atol=0.05)


def test_a_threshold_keeps_its_promise_on_other_comparisons():
    truth = lambda score: 1 / (1 + np.exp(-12 * (score - 0.3)))  # noqa: E731
    fitted = histogram_of(*draw(truth))
    scores, same = draw(truth, seed=7)
    for wanted in (0.5, 0.8, 0.95):
        accepted = scores >= fitted.threshold(wanted)
        assert same[accepted].mean() == pytest.approx(wanted, abs=0.02)
        true, false, precision = fitted.rates(fitted.threshold(wanted))
        assert true == pytest.approx(same[accepted].sum() / same.sum(), abs=0.01)
        assert false == pytest.approx((~same)[accepted].sum() / (~same).sum(), abs=0.01)
        assert precision == pytest.approx(wanted, abs=0.02)
    with pytest.raises(UserError, match=r"precision=0.999999: no score of this model promises it; the best"):
        fitted.threshold(0.999999)
    with pytest.raises(UserError, match=r"precision=95: must lie between 0 and 1, such as 0.95"):
        fitted.threshold(95)


def test_few_comparisons_promise_little():
    """Twelve comparisons that a threshold separates are no certainty."""
    few = fit_calibration(torch.tensor([[1, 0], [1, 0.1], [0, 1], [0.1, 1.0]]), [0, 0, 1, 1])
    assert few.same.sum() == 4
    assert few.different.sum() == 8
    assert 0.6 < few.probability(1.0) < 0.95
    with pytest.raises(UserError, match="no score"):
        few.threshold(0.99)


def test_counts_are_those_of_plain_loops(monkeypatch):
    torch.manual_seed(3)
    vectors, labels = torch.randn(30, 4), torch.arange(30) % 7
    gallery, gallery_labels = torch.randn(11, 4), torch.arange(11) % 7
    monkeypatch.setattr(calibration, "_BLOCK", 40)
    unit = torch.nn.functional.normalize
    for others, other_labels in ((None, None), (gallery, gallery_labels)):
        found = fit_calibration(vectors, labels, others, other_labels)
        against, classes = (vectors, labels) if others is None else (others, other_labels)
        cosine = (unit(vectors) @ unit(against).T).numpy()
        same = (labels[:, None] == classes).numpy()
        kept = np.ones_like(same) if others is not None else ~np.eye(30, dtype=bool)
        assert found.same.sum() == (same & kept).sum()
        assert found.different.sum() == (~same & kept).sum()
        for threshold in found.edges[1:-1:5]:
            true, false, _ = found.rates(threshold)
            assert true == pytest.approx(
                ((cosine >= threshold) & same & kept).sum() / found.same.sum(), abs=0.02
            )
            wrong = ((cosine >= threshold) & ~same & kept).sum()
            assert false == pytest.approx(wrong / found.different.sum(), abs=0.02)


def test_a_part_of_the_queries_keeps_the_prior(monkeypatch):
    torch.manual_seed(0)
    vectors, labels = torch.randn(400, 4), torch.arange(400) // 4
    whole = fit_calibration(vectors, labels)
    monkeypatch.setattr(calibration, "COMPARISONS", 40_000)
    part = fit_calibration(vectors, labels)
    assert part.same.sum() + part.different.sum() == 100 * 399
    assert part.prior == pytest.approx(whole.prior)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved model, and data of six classes."""
    root = tmp_path_factory.mktemp("calibration")
    write_stripes(root / "data", [f"kind {number}" for number in range(6)], 5, np.random.default_rng(0), 0)
    torch.manual_seed(0)
    Embedder.create(backbone="small", dim=8, stored=32, crop=32).save(root / "model")
    return root


def test_it_is_stored_with_the_model_and_read_again(saved, tmp_path):
    found = calibrate_model(saved / "model", saved / "data", cache=tmp_path, progress=False)
    again = Calibration.read(saved / "model", found.model)
    assert again is not None
    assert "30 images of 6 classes of" in again.about
    assert again.prior == pytest.approx(4 / 29)
    np.testing.assert_array_equal(again.probability([0.1, 0.9]), found.probability([0.1, 0.9]))
    assert "precision of all" in again.text()
    with pytest.raises(UserError, match=r"calibration.json: of another model: run firstpage calibrate again"):
        Calibration.read(saved / "model", "f00")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"prior": 0.', '"prior": 0.1'), "it does not have its checksum"),
        (lambda text: text[: len(text) // 2], "is not valid JSON"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "not a calibration of version 1"),
        (lambda text: "[]", "not a calibration of version 1"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    path = fit_calibration(torch.eye(4), [0, 0, 1, 1]).save(tmp_path)
    path.write_text(change(path.read_text()))
    with pytest.raises(UserError, match=message):
        Calibration.read(tmp_path)


@pytest.mark.parametrize("change", [{"prior": 2.0}, {"same": [-1]}, {"edges": [0, 0]}, {"other": 1}])
def test_a_file_that_no_fit_gives_is_refused(tmp_path, change):
    path = fit_calibration(torch.eye(4), [0, 0, 1, 1]).save(tmp_path)
    table = json.loads(path.read_text()) | change
    del table["checksum"]
    path.write_text(json.dumps(table | {"checksum": calibration.json_checksum(table)}))
    with pytest.raises(UserError, match=r"not valid .*: run firstpage calibrate again"):
        Calibration.read(tmp_path)


def test_classes_of_the_training_are_left_out(tmp_path):
    from firstpage.training import fit
    from support.striped import small_recipe

    write_stripes(tmp_path / "data/train", list("abcd"), 5, np.random.default_rng(0), 0)
    write_stripes(tmp_path / "data/test", list("dxyz"), 5, np.random.default_rng(0), 4)
    recipe = small_recipe("schedule.epochs=0", "batch.size=4", "batch.images_per_class=2")
    fit(recipe, read(tmp_path / "data"), tmp_path / "run", cache=tmp_path / "cache", progress=False)
    found = calibrate_model(tmp_path / "run", cache=tmp_path / "cache", progress=False)
    assert found.about.startswith("fitted on 15 images of 3 classes of")
    assert "1 test classes of the training are left out" in found.about
    assert (tmp_path / "run/best/calibration.json").is_file()


def test_an_index_has_the_prior_of_its_own_labels_unless_one_was_set(saved, tmp_path):
    vectors = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    fitted = fit_calibration(vectors, torch.arange(40) // 10)
    labels = np.arange(60) // 3  # 20 classes of 3: 2 of the 59 others are of the same class
    assert fitted.for_gallery(labels).prior == pytest.approx(2 / 59)
    assert fitted.for_gallery(labels).threshold(0.01) >= fitted.threshold(0.01)
    for nothing in (np.zeros(60), np.arange(60), [], [0]):
        assert fitted.for_gallery(nothing) is fitted
    chosen = fit_calibration(vectors, torch.arange(40) // 10, prior=0.3)
    assert chosen.for_gallery(labels) is chosen

    model, data = Embedder.load(saved / "model"), read(saved / "data")
    held_out = fit_calibration(vectors, torch.arange(40) // 10, model=model_fingerprint(model))
    index = Index.build(tmp_path / "index", model, data, calibration=held_out, cache=tmp_path, progress=False)
    counts = np.bincount(data.labels)
    expected = (counts * (counts - 1)).sum() / (len(data) * (len(data) - 1))
    assert index.calibration.prior == pytest.approx(expected)


def test_an_index_shows_and_cuts_by_it(saved, tmp_path, capsys):
    cache = ["--cache", str(tmp_path / "cache")]
    index, photos = str(tmp_path / "index"), str(saved / "data")

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        return ended.value.code, capsys.readouterr()

    assert run("calibrate", saved / "model", "--data", photos, "--prior", "0.5", *cache)[0] == 0
    assert run("index", "build", saved / "model", photos, "--out", index, *cache)[0] == 0
    code, shown = run("search", index, "--id", 0, "-k", 3)
    assert code == 0
    assert shown.out.count("  same ") == 3
    opened = Index.open(index)
    assert opened.verify() == []
    lines = opened.search(ids=range(30), k=29)
    assert all(0 < match.probability < 1 for line in lines for match in line)
    least = opened.calibration.threshold(0.6)
    cut = opened.search(ids=range(30), k=29, min_precision=0.6)
    assert cut == [[match for match in line if match.score >= least] for line in lines]
    assert 0 < sum(map(len, cut)) < 30 * 29
    file = tmp_path / "index/model/calibration.json"
    file.write_bytes(file.read_bytes().replace(b"1", b"2", 1))
    assert opened.verify() == ["model/calibration.json: damaged"]


def test_without_a_calibration_there_is_no_cut(saved, tmp_path):
    model = Embedder.load(saved / "model")
    index = Index.build(tmp_path / "index", model, read(saved / "data"), cache=tmp_path, progress=False)
    assert index.search(ids=[0])[0][0].probability is None
    with pytest.raises(UserError, match="not calibrated: run firstpage calibrate"):
        index.search(ids=[0], min_precision=0.9)
    other = fit_calibration(torch.eye(4), [0, 0, 1, 1])
    with pytest.raises(UserError, match="calibration: is of another model"):
        Index.build(tmp_path / "new", model, read(saved / "data"), calibration=other, cache=tmp_path)
