"""Searching for parts of images, folders of them and means; near-duplicates, label errors, montages."""

import json

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from firstpage import cli
from firstpage.data import Catalog
from firstpage.data.near_duplicates import MAX_DISTANCE, sketch
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.search import Index, crop_image, find_duplicates, search_many
from firstpage.search.duplicates import find_suspects
from firstpage.search.queries import parse_box

KINDS = {"red": (200, 30, 30), "green": (30, 170, 60), "blue": (40, 60, 200)}


def paint(path, color, seed):
    """A picture of few large shapes in one color, different for each seed."""
    random = np.random.default_rng(seed)
    pixels = np.clip(np.array(color) + random.integers(-30, 30, (5, 5, 3)), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).resize((90, 70), Image.Resampling.BICUBIC).save(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Eight images of each of three colors, one of them in the wrong folder; one is there twice."""
    root = tmp_path_factory.mktemp("colors")
    names = []
    for kind, color in KINDS.items():
        for number in range(8):
            names.append(f"{kind}/{number}.png")
            paint(root / "photos" / names[-1], color, len(names))
    names.append("red/wrong.png")  # id 24
    paint(root / "photos/red/wrong.png", KINDS["blue"], 99)
    names.append("green/copy.png")  # id 25, of id 9
    with Image.open(root / "photos/green/1.png") as image:
        image.resize((60, 47)).save(root / "photos/green/copy.png")
    torch.manual_seed(0)
    model = Embedder.create(backbone="small", dim=16, stored=32, crop=32).eval()
    labels = np.array([list(KINDS).index(name.partition("/")[0]) for name in names])
    catalog = Catalog("colors", root / "photos", names, labels, list(KINDS), {})
    Index.build(root / "index", model, catalog, cache=root / "cache", progress=False)
    return root


@pytest.fixture
def index(place):
    return Index.open(place / "index")


def ids_of(matches):
    return [match.id for match in matches]


def run(capsys, *command, code=0):
    with pytest.raises(SystemExit) as end:
        cli.main([str(part) for part in command])
    shown = capsys.readouterr()
    assert end.value.code == code, shown
    return shown


def test_a_box_searches_for_that_part(index, place, tmp_path):
    sheet = Image.new("RGB", (200, 100), "white")
    with Image.open(place / "photos/blue/3.png") as image:
        sheet.paste(image, (100, 10))
    sheet.save(tmp_path / "sheet.png")
    box = (100, 10, 190, 80)
    [[best]] = index.search([crop_image(tmp_path / "sheet.png", box)], k=1)
    assert (best.id, round(best.score, 4)) == (19, 1.0)
    [answer] = search_many(index, [tmp_path / "sheet.png"], 1, box=box)
    assert ids_of(answer.matches) == [19]
    assert crop_image(np.asarray(sheet), box).size == (90, 70)
    for bad in ((300, 0, 400, 50), (10, 10, 10, 20)):
        with pytest.raises(UserError, match="has no area in an image of 200 × 100 pixels"):
            crop_image(sheet, bad)
    with pytest.raises(UserError, match="name the file instead of its id"):
        list(search_many(index, ids=[1], box=box))


def test_a_box_counts_from_the_top_left_of_the_upright_image(tmp_path):
    image = Image.new("RGB", (60, 40), "blue")
    image.paste("red", (0, 0, 30, 40))
    exif = Image.Exif()
    exif[274] = 6  # shown upright, it is turned by a quarter: red is at the top
    image.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    top = crop_image(tmp_path / "turned.jpg", (5, 5, 35, 25))
    assert top.size == (30, 20)
    assert np.asarray(top)[..., 0].min() > 200


@pytest.mark.parametrize("box", ["0.1,0.1,0.6,0.9", "5,5,5,9", "1,2,3", "nan,0,9,9", "0,0,inf,9"])
def test_a_box_of_the_api_is_not_taken_for_pixels(box):
    with pytest.raises(UserError, match="in pixels, such as"):
        parse_box(box)


def test_folders_are_searched_in_batches(index, place, tmp_path, monkeypatch):
    monkeypatch.setattr("firstpage.search.queries.BATCH", 5)
    answers = list(search_many(index, [place / "photos"], 2, ids=[4, 8], progress=False))
    assert [answer.matches[0].path for answer in answers[:26]] == [answer.name for answer in answers[:26]]
    assert [answer.images for answer in answers[26:]] == [[4], [8]]
    assert ids_of(answers[26].matches) == ids_of(index.search(ids=[4], k=2)[0])
    [mean] = search_many(index, [place / "photos/red/0.png"], 3, ids=[5], average=True)
    [expected] = index.search([place / "photos/red/0.png"], 3, ids=[5], average=True)
    assert ids_of(mean.matches) == ids_of(expected)
    assert len(mean.images) == 2


def test_a_broken_image_of_a_folder_is_left_out_and_a_named_one_is_an_error(index, tmp_path):
    for number in range(3):
        paint(tmp_path / f"new/{number}.png", KINDS["red"], 200 + number)
    (tmp_path / "new/1.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="left out .*1.png"):
        answers = list(search_many(index, [tmp_path / "new"], progress=False))
    assert [answer.name[-5:] for answer in answers] == ["0.png", "2.png"]
    with pytest.raises(UserError, match=r"1.png"):
        list(search_many(index, [tmp_path / "new/1.png"], progress=False))


def test_duplicates_and_label_errors_are_found(index):
    found = find_duplicates(index, progress=False)
    assert found.groups == [[9, 25]]
    assert [(one.id, one.suggested) for one in found.suspects] == [(24, "blue")]
    assert found.summary() == "26 images: 2 near-duplicates in 1 groups, 1 with neighbors of another label"
    assert find_duplicates(index, min_score=-1, progress=False).groups == [list(range(26))]
    with pytest.raises(UserError, match="min_score=5: must be a cosine"):
        find_duplicates(index, min_score=5)


def test_other_shoes_before_a_white_wall_are_no_near_duplicates(index, tmp_path):
    """Most of such pictures is the same; what is not is too small for the colors of 8 × 8 fields."""

    def shoe(name, heel=0, quality=95, size=(180, 240)):
        image = Image.new("RGB", (180, 240), "white")
        draw = ImageDraw.Draw(image)
        draw.polygon([(40, 130), (70, 95), (110, 120), (140, 130), (140, 150), (40, 150)], fill=(60, 40, 30))
        draw.rectangle((75, 150 - heel, 115, 151), fill="white")
        image.resize(size).save(tmp_path / name, quality=quality)

    shoe("1.jpg")
    shoe("2.jpg", quality=30, size=(120, 160))  # the same, compressed
    shoe("3.jpg", heel=15)
    sketches = [sketch(Image.open(tmp_path / f"{number}.jpg")) for number in (1, 3)]
    assert (sketches[0][0] ^ sketches[1][0]).bit_count() <= MAX_DISTANCE
    catalog = Catalog("shoes", tmp_path, ["1.jpg", "2.jpg", "3.jpg"], np.zeros(3, np.int64), ["shoe"], {})
    shoes = Index.build(tmp_path / "index", index.model, catalog, cache=tmp_path / "cache", progress=False)
    assert find_duplicates(shoes, progress=False).groups == [[0, 1]]


def test_votes_are_those_of_plain_loops():
    random = np.random.default_rng(0)
    labels = np.array(list("abc"))[random.integers(0, 3, 60)]
    labels[7] = "alone"
    points = random.normal(size=(60, 3)) + 2 * (labels[:, None] == np.array(list("abc")))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    cosine = points @ points.T - 3 * np.eye(60)
    neighbors = np.argsort(-cosine, axis=1, kind="stable")[:, :15]
    group = np.arange(60)
    group[random.permutation(60)[:20]] = np.repeat(np.arange(100, 110), 2)
    expected = []
    for row in range(60):
        chosen, seen = [], {group[row]}
        for other in neighbors[row]:
            if group[other] not in seen and len(chosen) < 5:
                chosen.append(other)
            seen.add(group[other])
        kinds = [labels[other] for other in chosen]
        most = max(sorted(set(kinds)), key=kinds.count)
        if len(chosen) == 5 and labels[row] not in kinds and kinds.count(most) >= 4 and row != 7:
            expected.append((row, most, kinds.count(most)))
    scores = np.take_along_axis(cosine, neighbors, 1).astype(np.float32)
    found = find_suspects(labels, neighbors, scores, group)
    assert expected
    assert sorted((one.id, one.suggested, one.votes) for one in found) == expected


def test_the_commands(place, tmp_path, capsys):
    index, query = place / "index", place / "photos/blue/3.png"
    sheet = tmp_path / "new folder/sheet.png"
    shown = run(capsys, "search", index, query, "--box", "0,0,90,70", "-k", 7, "--montage", sheet)
    assert "1.000  blue" in shown.out
    assert f"wrote {sheet}" in shown.err
    with Image.open(sheet) as picture:
        assert picture.width > 1000
        blue = (np.asarray(picture).astype(int) @ (-1, -1, 2) > 100).mean()
    assert blue > 0.1  # the pictures are there
    run(capsys, "search", index, query, "--id", 3, "--average", "--montage", tmp_path / "mean.png")
    run(capsys, "search", index, "--id", 3, "--montage", tmp_path / "id.png")
    shown = run(capsys, "search", index, "--duplicates", "--montage", tmp_path / "twins.png")
    assert shown.out.startswith(
        "26 images: 2 near-duplicates in 1 groups, 1 with neighbors of another label\n"
    )
    assert "5 of 5 neighbors are 'blue'" in shown.out
    assert (tmp_path / "twins.png").stat().st_size > 5000
    table = json.loads(run(capsys, "search", index, "--duplicates", "--json").out)
    assert [[row["id"] for row in group] for group in table["duplicates"]] == [[9, 25]]
    assert table["label_errors"][0]["path"] == str(place / "photos/red/wrong.png")
    for command, message in [
        (["--duplicates", query], "leave out queries and filters"),
        ([query, "--min-score", "0.9"], "--min-precision cuts results"),
        ([query, "--montage", "sheet.jpg"], "a montage is written as .png"),
        ([query, "--box", "1,2,3"], "give left,top,right,bottom in pixels"),
    ]:
        assert message in run(capsys, "search", index, *command, code=2).err
