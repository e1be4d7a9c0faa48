"""The API: the same results as the library, marks that last, metrics, and indexes that change."""

import io
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from firstpage import cli, serve
from firstpage.data import Catalog
from firstpage.data.marks import FILE
from firstpage.errors import UserError
from firstpage.report.marks import render_marks
from firstpage.search import Index
from firstpage.serve import Mark, MarkFile, create_app, marks
from firstpage.serve.served_index import fold_duplicates
from support.serving import NAMES, build_index, client_of, encoded, picture


def ids(answer):
    return [result["id"] for result in answer.json()["results"]]


def test_an_uploaded_image_finds_what_the_library_finds(client, folders):
    image = picture(77)
    for number, folder in enumerate(folders):
        answer = client.post("/api/search", params={"index": number, "k": 5}, content=encoded(image))
        [expected] = Index.open(folder).search([image], 5)
        assert ids(answer) == [match.id for match in expected]
        for result, match in zip(answer.json()["results"], expected, strict=True):
            assert result["score"] == pytest.approx(match.score, abs=1e-5)
            assert (result["label"], result["columns"]) == (match.label, match.columns)
            assert result["path"] == NAMES[match.id]  # not where it is on this machine


def test_an_image_of_the_index_is_not_among_its_own_results(client, folders):
    answer = client.get("/api/search", params={"id": 4, "k": 20})
    [expected] = Index.open(folders[0]).search(ids=[4], k=20)
    assert ids(answer) == [match.id for match in expected]
    assert len(ids(answer)) == 11
    other = client.get("/api/search", params={"id": 4, "of": 0, "index": 1, "k": 3})
    [expected] = Index.open(folders[1]).search(ids=[4], k=3)
    assert ids(other) == [match.id for match in expected]


def test_filters_and_a_wrong_one(client):
    answer = client.get("/api/search", params={"id": 0, "where": "label == 'mug' and price < 60"})
    assert sorted(ids(answer)) == [4, 5]
    wrong = client.get("/api/search", params={"id": 0, "where": "__import__('os')"})
    assert wrong.status_code == 400
    assert wrong.json()["error"].startswith("where: cannot use")


def test_a_box_is_searched_by_itself(client, folders):
    image = picture(77, (100, 80))
    answer = client.post("/api/search", params={"box": "0.5,0.25,1,1", "k": 4}, content=encoded(image))
    [expected] = Index.open(folders[0]).search([image.crop((50, 20, 100, 80))], 4)
    assert ids(answer) == [match.id for match in expected]
    assert answer.json()["results"][0]["score"] == pytest.approx(expected[0].score, abs=1e-5)
    for box in ("1,2,3", "0.5,0,0.5,1", "nan,0,1,1", "-1,0,1,1", "0,0,0.001,1", "a,b,c,d"):
        assert client.get("/api/search", params={"id": 1, "box": box}).status_code == 422


def test_near_duplicates_are_folded_under_the_first(client):
    found = client.get("/api/search", params={"id": 9, "k": 11, "fold": 0.999}).json()["results"]
    folded = {result["id"]: result["duplicate_of"] for result in found}
    assert {folded[2], folded[3]} == {None, min(2, 3)} or {folded[2], folded[3]} == {None, max(2, 3)}
    assert sum(first is not None for first in folded.values()) == 1
    few = client.get("/api/search", params={"id": 9, "k": 3, "fold": 0.999}).json()["results"]
    assert sum(result["duplicate_of"] is None for result in few) == 3


def test_folding_never_chains():
    import torch

    angles = torch.tensor([0.0, 0.1, 0.2])  # the third is near the second, not near the first
    vectors = torch.stack([angles.cos(), angles.sin()], 1)
    assert fold_duplicates(vectors, float(np.cos(0.11))) == [None, 0, None]


def test_a_heat_map_sums_to_the_score(client):
    found = client.get("/api/search", params={"id": 4, "k": 1}).json()["results"][0]
    for answer in (
        client.get("/api/explain", params={"id": 4, "result": found["id"]}),
        client.post("/api/explain", params={"result": found["id"]}, content=encoded(picture(4))),
    ):
        why = answer.json()
        assert why["exact"]
        assert why["score"] == pytest.approx(found["score"], abs=1e-4)
        for part in (why["query"], why["result"]):
            assert np.sum(part["parts"]) == pytest.approx(found["score"], abs=1e-4)
    assert client.get("/api/explain", params={"id": 4, "result": 99}).status_code == 404


def test_pictures_are_new_jpegs_of_bounded_size(client):
    for path in ("/api/images/3/thumbnail", "/api/images/3/picture?side=40"):
        answer = client.get(path)
        assert answer.headers["content-type"] == "image/jpeg"
        image = Image.open(io.BytesIO(answer.content))
        assert image.format == "JPEG"
        assert max(image.size) <= 160
    assert max(Image.open(io.BytesIO(answer.content)).size) == 40
    assert client.get("/api/images/3/picture?side=99999").status_code == 422
    assert client.get("/api/images/99/thumbnail").status_code == 404
    assert client.get("/api/images/3").json() == {"id": 3, "label": "cup", "path": "cup/3.png"}


def test_what_is_in_the_index(client):
    first, second = client.get("/api/indexes").json()
    assert (first["name"], second["name"], first["images"]) == ("first", "second", 12)
    assert first["labels"] == {"cup": 4, "mug": 4, "pot": 4}
    assert first["columns"] == ["label", "path", "price"]
    assert first["samples"] == list(range(12))
    assert first["model"] != second["model"]


def lines(folder):
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_marks_are_kept_changed_and_undone(index, shop):
    with client_of(create_app([index.folder])) as client:
        settings = {"id": 4, "result": 5}
        assert client.post("/api/marks", params=settings | {"right": True}).json() == {
            "right": True,
            "marks": 1,
        }
        [line] = lines(index.folder)
        assert line == {
            "time": line["time"],
            "query": str(shop / "mug/0.png"),
            "query_id": 4,
            "result_id": 5,
            "result_path": str(shop / "mug/1.png"),
            "result_label": "mug",
            "right": True,
            "model": index.manifest.model,
        }
        found = client.get("/api/search", params={"id": 4, "k": 11}).json()["results"]
        assert {result["id"]: result["mark"] for result in found if result["mark"] is not None} == {5: True}
        client.post("/api/marks", params=settings | {"right": False})
        assert [line["right"] for line in lines(index.folder)] == [False]
        assert client.post("/api/marks", params=settings | {"right": False}).json() == {
            "right": None,
            "marks": 0,
        }
        assert lines(index.folder) == []
        assert client.post("/api/marks", params={"id": 4, "result": 99, "right": True}).status_code == 404
    assert index.verify() == []


def test_the_picture_of_an_uploaded_query_is_kept_as_long_as_its_mark(index):
    content = encoded(picture(77), "JPEG", comment=b"<script>alert(1)</script>")
    with client_of(create_app([index.folder])) as client:
        client.post("/api/marks", params={"result": 5, "right": True}, content=content)
        client.post("/api/marks", params={"result": 6, "right": False}, content=content)
        [one, two] = lines(index.folder)
        assert one["query"] == two["query"]
        assert re.fullmatch(r"feedback/[0-9a-f]{64}\.jpg", one["query"])
        assert one["query_id"] is None
        kept = (index.folder / one["query"]).read_bytes()
        assert Image.open(io.BytesIO(kept)).size == (80, 60)
        assert b"script" not in kept
        found = client.post("/api/search", params={"k": 12}, content=content).json()["results"]
        assert {r["id"]: r["mark"] for r in found if r["mark"] is not None} == {5: True, 6: False}
        part = {"result": 5, "right": True, "box": "0,0,0.5,0.5"}
        client.post("/api/marks", params=part, content=content)
        assert Image.open(index.folder / lines(index.folder)[-1]["query"]).size == (40, 30)
        client.post("/api/marks", params=part, content=content)
        for result, right in ((5, True), (6, False)):
            client.post("/api/marks", params={"result": result, "right": right}, content=content)
        assert lines(index.folder) == []
        assert list((index.folder / "feedback").iterdir()) == []


def test_damaged_marks_are_told_and_not_lost(tmp_path):
    mark = Mark(marks.now(), "a.jpg", 1, 2, "b.jpg", "mug", True, "4f2a")
    MarkFile(tmp_path).set(mark)
    path = tmp_path / FILE
    path.write_text(path.read_text() + '{"half')
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"feedback\.jsonl: line 2 is damaged: correct or remove it"):
        MarkFile(tmp_path).set(mark)
    assert path.read_bytes() == before


def test_what_is_wrong_with_the_server_s_files_is_in_its_log_alone(index, caplog):
    (index.folder / FILE).write_text('{"half')
    with client_of(create_app([index.folder])) as client:
        answer = client.get("/api/search", params={"id": 4})
    assert (answer.status_code, answer.json()) == (500, {"error": "the server failed; its log says why"})
    assert "feedback.jsonl: line 1 is damaged: correct or remove it" in caplog.text


def test_what_is_wrong_with_the_index_is_in_the_log_even_with_a_filter(index, caplog):
    with client_of(create_app([index.folder])) as client:
        for file in index.folder.rglob("rows.jsonl"):
            file.write_bytes(b"x" * file.stat().st_size)
        answer = client.get("/api/search", params={"id": 4, "where": "label == 'mug'"})
    assert (answer.status_code, answer.json()) == (500, {"error": "the server failed; its log says why"})
    assert "damaged or incomplete" in caplog.text


def test_the_query_itself_cannot_be_marked(index):
    with client_of(create_app([index.folder])) as client:
        answer = client.post("/api/marks", params={"id": 4, "result": 4, "right": False})
    assert (answer.status_code, answer.json()) == (422, {"error": "result 4: is the query itself"})


def test_the_number_of_marks_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(marks, "MAX_MARKS", 1)
    MarkFile(tmp_path).set(Mark(marks.now(), "a.jpg", 1, 2, "b.jpg", "mug", True, "4f2a"))
    with pytest.raises(UserError, match="has 1 marks, which is the most"):
        MarkFile(tmp_path).set(Mark(marks.now(), "a.jpg", 1, 3, "c.jpg", "mug", True, "4f2a"))


def test_a_changed_index_is_seen_without_a_restart(index, shop):
    with client_of(create_app([index.folder])) as client:
        assert client.get("/api/indexes").json()[0]["images"] == 12
        assert index.remove([5]).manifest.generation == 2
        assert 5 not in ids(client.get("/api/search", params={"id": 4, "k": 20}))
        assert client.get("/api/images/5/thumbnail").status_code == 404
        manifest = index.folder / "index.json"
        manifest.write_text(manifest.read_text()[:-9])  # half a copy: what is open is still served
        assert len(ids(client.get("/api/search", params={"id": 4, "k": 20}))) == 10


def test_missing_files_are_shown_as_thumbnails(index, shop, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(shop, moved)
    gone = Catalog("gone", moved, ["mug/0.png"], np.zeros(1, np.int64), ["mug"], {})
    index = index.add(gone, cache=tmp_path / "cache", progress=False)
    shutil.rmtree(moved)
    with client_of(create_app([index.folder])) as client:
        assert client.get("/api/images/12/picture").status_code == 200
        assert client.get("/api/explain", params={"id": 12, "result": 4}).json()["score"] > 0.5


def test_metrics_count_requests_errors_and_images(client):
    client.get("/api/images/99/thumbnail")
    client.get("/nowhere/at/all")
    text = client.get("/metrics").text
    assert 'firstpage_requests_total{route="/api/images/{id}/thumbnail",method="GET",status="404"}' in text
    assert 'firstpage_requests_total{route="other",method="GET",status="404"}' in text
    assert 'firstpage_index_images{index="0"} 12' in text
    assert "nowhere" not in text
    buckets = re.findall(r'seconds_bucket\{route="/api/images/\{id\}/thumbnail",le="[^"]+"\} (\d+)', text)
    assert list(map(int, buckets)) == sorted(map(int, buckets))
    [count] = re.findall(r'seconds_count\{route="/api/images/\{id\}/thumbnail"\} (\d+)', text)
    assert int(count) == int(buckets[-1]) > 0
    assert client.get("/healthz").text == "ok\n"


def test_the_api_is_described_and_its_page_fetches_nothing_from_elsewhere(client):
    described = client.get("/openapi.json").json()
    assert {"/api/search", "/api/explain", "/api/marks", "/api/indexes", "/metrics"} <= set(
        described["paths"]
    )
    assert "requestBody" in described["paths"]["/api/search"]["post"]
    folder = Path(serve.__file__).parent / "page"
    for file in folder.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"https?://(?!127\.0\.0\.1|www\.w3\.org)", text), file
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(| on\w+=", text
        ), file
        assert client.get(f"/static/{file.name}").status_code == 200
    assert f"MAX_UPLOAD = {serve.uploads.MAX_UPLOAD};" in (folder / "api.js").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no index there"),
        (["a", "b", "c"], "give one index, or two to compare"),
        (["INDEX", "--token", "short"], "token: has 5 characters; give at least 8"),
        (["INDEX", "--host", "203.0.113.7"], "choose another --host or --port"),
        (["INDEX", "--port", "99999"], "must be in 0..65535"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(folders, arguments, message, capsys):
    given = [str(folders[0]) if word == "INDEX" else word for word in arguments]
    with pytest.raises(SystemExit) as stop:
        cli.main(["serve", *given])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_fastapi_the_remedy_is_said(folders, monkeypatch, capsys):
    import builtins

    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("firstpage.serve.server"):
            raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SystemExit):
        cli.main(["serve", str(folders[0])])
    assert "pip install 'firstpage[serve]'" in capsys.readouterr().err


def test_an_index_of_another_model_is_refused_at_the_start(shop, tmp_path):
    one = build_index(tmp_path / "one", shop).folder
    two = build_index(tmp_path / "two", shop, seed=5).folder
    os.replace(two / "model/model.safetensors", one / "model/model.safetensors")
    with pytest.raises(UserError, match="is not the model of this index"):
        create_app([one])


def test_the_report_shows_marks(index, shop):
    with client_of(create_app([index.folder])) as client:
        for result, right in ((5, True), (6, False)):
            client.post("/api/marks", params={"id": 4, "result": result, "right": right})
        client.post("/api/marks", params={"result": 9, "right": False}, content=encoded(picture(77)))
    page = "".join(render_marks(index.folder))
    assert "3 results of 2 queries were marked in the search page: 1 right, 2 wrong, 33 % right." in page
    assert page.index("an uploaded image") < page.index("0.png")  # the latest first
    assert page.count('class="result is-wrong"') == 2
    assert page.count("data:image/") == 5
