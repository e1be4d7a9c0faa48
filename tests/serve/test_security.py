"""What strangers send: each is refused with one line, and the server goes on."""

import http.client
import io
import socket
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import anyio
import httpx
import numpy as np
import pytest
from PIL import Image

from firstpage.data import Catalog
from firstpage.search import Index
from firstpage.serve import app as app_module
from firstpage.serve import create_app, guard, run_server, server, site, uploads
from firstpage.serve.guard import Gate, Refusal
from support.serving import client_of, encoded, picture, running

TOKEN = "correct horse battery"


def refused(answer, *statuses):
    """A refusal is one line of JSON that tells nothing about the server's inside."""
    assert answer.status_code in statuses, answer.text
    assert set(answer.json()) == {"error"}
    text = answer.json()["error"]
    assert "\n" not in text
    for trace in ("Traceback", "File ", ".py", "site-packages", "firstpage/", "/tmp", "<"):
        assert trace not in text, text
    return text


def png(width, height, body=b""):
    """A PNG whose header claims any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = []
    for name, data in ((b"IHDR", header), (b"IDAT", body or zlib.compress(bytes(100))), (b"IEND", b"")):
        parts.append(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


HOSTILE = {
    "text": (b"just words", 415),
    "empty": (b"", 400),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', 415),
    "html": (b"<!doctype html><script>alert(1)</script>", 415),
    "html in a jpeg": (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00<html><script>alert(1)</script></html>", 415),
    "pixel bomb": (png(60000, 60000), 422),
    "long side": (png(2**20, 1), 422),
    "bomb of zeros": (png(50000, 20000, zlib.compress(bytes(10**6))), 422),
    "cut jpeg": (encoded(picture(1), "JPEG")[:-200], 422),
    "pickle": (b"\x80\x04\x95cposix\nsystem\n(S'id'\ntR.", 415),
    "zip": (b"PK\x03\x04" + bytes(100), 415),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", 415),
    "webp bomb": (b"RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00\x2f\xff\xff\xff\xff" + bytes(8), 422),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("route", ["/api/search", "/api/explain?result=1", "/api/marks?result=1&right=true"])
def test_what_is_no_image_is_refused(client, kind, route):
    content, status = HOSTILE[kind]
    text = refused(client.post(route, content=content), status)
    assert "alert" not in text


def test_a_jpeg_with_html_inside_never_comes_back_as_it_came():
    content = encoded(picture(1), "JPEG", comment=b"<script>alert(1)</script>", exif=b"Exif\0\0<script>")
    image = uploads.decode_query(uploads.Query(content), 32)
    assert b"script" in content
    assert b"script" not in uploads.to_jpeg(image)


def test_pixels_are_counted_before_they_are_decoded(client, monkeypatch):
    def load(self):
        raise AssertionError("decoded")

    monkeypatch.setattr(Image.Image, "load", load)
    for kind in ("pixel bomb", "long side", "bomb of zeros", "webp bomb"):
        assert "damaged" not in refused(client.post("/api/search", content=HOSTILE[kind][0]), 422)


def test_large_uploads_are_refused_before_they_are_read(client, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_UPLOAD", 1000)
    text = refused(client.post("/api/search", content=bytes(1001)), 413)
    assert text == "more than 1,000 bytes; send a smaller file"

    def chunks():  # of a length that is not said
        for _ in range(50):
            yield bytes(100)

    refused(client.post("/api/search", content=chunks()), 413)
    refused(client.post("/api/search", content=b"", headers={"content-length": "0"}), 400)
    with pytest.raises(Refusal, match="more than 8 bytes"):
        anyio.run(uploads.read_body, {"content-length": "-5"}, None, 8)


def test_bodies_that_do_not_come_are_given_up(monkeypatch):
    async def never():
        yield b"a"
        await anyio.sleep(60)

    monkeypatch.setattr(uploads, "UPLOAD_SECONDS", 0.01)
    with pytest.raises(Refusal, match="did not come in time") as refusal:
        anyio.run(uploads.read_body, {}, never(), 8)
    assert refusal.value.status == 408


@pytest.mark.parametrize(
    "path",
    [
        *("/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/%2e%2e/cli.py", "/static//etc/passwd"),
        *("/static/%2fetc%2fpasswd", "/..%2f..%2f..%2fetc/passwd", "/api/images/../../index.json"),
        *("/api/images/%2fetc%2fpasswd/picture", "/api/images/-1/picture", "/api/images/1e3/thumbnail"),
        *(
            "/api/images/99999999999999999999/picture",
            "/static/app.py",
            "/static/",
            "/static/%00",
            "/feedback.jsonl",
        ),
    ],
)
def test_paths_lead_nowhere_else(client, path):
    parts = urlsplit(str(client.base_url))
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.request("GET", path)  # as it is: httpx would resolve the dots
    answer = connection.getresponse()
    text = answer.read().decode()
    assert answer.status in (404, 422), text
    assert "root:" not in text
    assert "import" not in text


def test_links_out_of_the_catalogue_are_not_followed(index, shop, tmp_path):
    """Files that became links, and folders that became links, are shown as the thumbnails that they were."""
    place, secret = tmp_path / "catalogue", tmp_path / "secret"
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (300, 300), "white").save(place / name)
    secret.mkdir()
    for name in ("2.png", "3.png"):
        Image.new("RGB", (400, 400), "red").save(secret / name)
    catalog = Catalog("x", place, ["a/1.png", "a/2.png", "b/3.png"], np.zeros(3, np.int64), ["x"], {})
    built = Index.build(tmp_path / "other", index.model, catalog, cache=tmp_path / "cache", progress=False)
    (place / "a/2.png").unlink()
    (place / "a/2.png").symlink_to(secret / "2.png")
    (place / "b/3.png").unlink()
    (place / "b").rmdir()
    (place / "b").symlink_to(secret)
    with client_of(create_app([built.folder])) as client:
        sizes = [Image.open(io.BytesIO(client.get(f"/api/images/{id}/picture").content)) for id in range(3)]
    assert sizes[0].size == (300, 300)
    for image in sizes[1:]:
        assert max(image.size) <= 160
        assert image.getpixel((5, 5)) > (240, 240, 240)


def test_links_are_not_followed_for_thumbnails_that_the_index_does_not_have(index, tmp_path):
    """An index that was built from vectors, as on a Ray cluster, makes its thumbnails from the files."""
    place, secret = tmp_path / "catalogue", tmp_path / "secret.png"
    place.mkdir()
    Image.new("RGB", (300, 200), "white").save(place / "1.png")
    Image.new("RGB", (400, 400), "red").save(secret)
    (place / "2.png").symlink_to(secret)
    catalog = Catalog("x", place, ["1.png", "2.png"], np.zeros(2, np.int64), ["x"], {})
    vectors = np.eye(2, index.manifest.dim, dtype=np.float32)
    built = Index.build(tmp_path / "other", index.model, catalog, vectors=vectors)
    with client_of(create_app([built.folder])) as client:
        for kind, size in (("thumbnail", (160, 107)), ("picture", (300, 200))):
            shown, refused = (client.get(f"/api/images/{id}/{kind}") for id in range(2))
            assert Image.open(io.BytesIO(shown.content)).size == size
            assert (refused.status_code, refused.json()["error"]) == (404, "id 1: its file cannot be read")


def test_images_that_share_no_folder_but_the_root_may_not_be_links_either(index, monkeypatch):
    from firstpage.serve.served_index import ServedIndex

    served = ServedIndex(index.folder)
    monkeypatch.setattr(served, "root", lambda: "/")
    assert served.picture(0).size == (80, 60)
    monkeypatch.setattr(served, "value", lambda id, column: "/proc/self/exe")
    assert max(served.picture(0).size) <= 160


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "same-origin", "origin": "https://evil.example"},
    ],
)
def test_pages_of_other_sites_may_not_post(client, headers):
    refused(client.post("/api/marks?id=1&result=2&right=true", headers=headers), 403)
    refused(client.post("/api/search", content=encoded(picture(1)), headers=headers), 403)


def test_pages_of_other_sites_may_link_but_not_read(client):
    cross = {"sec-fetch-site": "cross-site"}
    assert client.get("/", headers=cross).status_code == 200
    refused(client.get("/api/images/1/thumbnail", headers=cross), 403)
    refused(client.get("/api/search?id=1", headers=cross), 403)
    own = {"sec-fetch-site": "same-origin", "origin": str(client.base_url).rstrip("/")}
    assert client.post("/api/search", content=encoded(picture(1)), headers=own).status_code == 200
    assert client.options("/api/search", headers={"origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::1", "a b"]
)
def test_other_names_are_refused_as_in_dns_rebinding(client, host):
    refused(client.get("/api/indexes", headers={"host": host}), 421)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "192.168.1.5"])
def test_own_names_are_accepted(client, host):
    assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_names_can_be_added(folders):
    with client_of(create_app(folders[:1], hosts=["Shop.Example"])) as client:
        assert client.get("/healthz", headers={"host": "shop.example:8000"}).status_code == 200
        assert client.get("/healthz", headers={"host": "other.example"}).status_code == 421


def test_ten_thousand_headers_are_refused(client):
    parts = urlsplit(str(client.base_url))
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as raw:
        lines = "".join(f"x-{number}: 1\r\n" for number in range(10_000))
        try:
            raw.sendall(f"GET /healthz HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n".encode())
            answer = raw.recv(100_000)
        except ConnectionError:  # it need not read them all
            answer = b"HTTP/1.1 400"
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
    assert b"Traceback" not in answer
    refused(client.get("/healthz", headers={f"x-{number}": "1" for number in range(101)}), 431)
    assert client.get("/healthz").status_code == 200


def test_two_hosts_are_refused(client):
    parts = urlsplit(str(client.base_url))
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 400")


@pytest.fixture(scope="module")
def locked(folders):
    with client_of(create_app(folders[:1], token=TOKEN)) as client:
        yield client


def test_the_token_is_asked_for_everywhere_but_at_the_door(locked):
    for path in (
        "/api/indexes",
        "/api/search?id=1",
        "/metrics",
        "/openapi.json",
        "/docs",
        "/api/images/1/thumbnail",
    ):
        answer = locked.get(path)
        refused(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
    assert locked.get("/healthz").status_code == 200
    assert locked.get("/static/style.css").status_code == 200
    page = locked.get("/")
    assert page.status_code == 401
    assert 'action="/login"' in page.text
    for wrong in (
        "Bearer wrong wrong",
        "Bearer",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
    ):
        assert locked.get("/api/indexes", headers={"authorization": wrong}).status_code == 401
    right = {"authorization": f"Bearer {TOKEN}"}
    assert locked.get("/api/indexes", headers=right).status_code == 200
    assert locked.get("/metrics", headers=right).status_code == 200


def test_the_page_gets_a_cookie_for_the_token(locked, folders):
    base = str(locked.base_url)
    for enter in (
        lambda client: client.get("/", params={"token": TOKEN}),
        lambda client: client.post("/login", data={"token": TOKEN}),
    ):
        with httpx.Client(base_url=base) as browser:
            answer = enter(browser)
            assert (answer.status_code, answer.headers["location"]) == (303, "/")
            cookie = answer.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert TOKEN not in cookie
            assert browser.get("/api/indexes").status_code == 200
            assert "Drop an image here" in browser.get("/").text
    for answer in (
        locked.get("/", params={"token": "x" * 20}),
        locked.post("/login", data={"token": "x" * 20}),
    ):
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
    strange = {"cookie": f'{Gate(TOKEN).cookie}=wrong; \x7f="'.encode("latin-1")}
    assert locked.get("/api/indexes", headers=strange).status_code == 401


def test_tokens_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(guard.hmac, "compare_digest", lambda one, two: compared.append(one) or one == two)
    gate = Gate(TOKEN)
    assert gate.admits({"authorization": f"Bearer {TOKEN}"})
    assert not gate.admits({"cookie": f"{gate.cookie}=guess"})
    assert compared == [TOKEN.encode(), b"guess"]


def test_every_answer_has_the_security_headers(client, locked):
    for answer in (
        client.get("/"),
        client.get("/nowhere"),
        client.get("/api/images/1/thumbnail"),
        client.post("/api/search", content=b"x"),
        client.get("/healthz", headers={"host": "evil.example"}),
        locked.get("/"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers


def test_a_failure_of_the_server_shows_nothing_of_its_inside(folders, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("secret of /srv/firstpage/app.py")

    with client_of(create_app(folders[:1])) as client:
        monkeypatch.setattr(app_module, "_describe", fail)
        answer = client.get("/api/indexes")
        assert refused(answer, 500) == "the server failed; its log says why"
        assert "secret" not in answer.text
        assert client.get("/healthz").status_code == 200
    assert "secret" in caplog.text


def test_more_work_than_can_be_done_is_put_off(folders, monkeypatch):
    monkeypatch.setattr(site, "MAX_WAITING", 2)
    running_now, go_on = threading.Semaphore(0), threading.Event()
    real = app_module.compare_images

    def slowly(*arguments):
        running_now.release()
        go_on.wait(60)
        return real(*arguments)

    monkeypatch.setattr(app_module, "compare_images", slowly)
    with client_of(create_app(folders[:1], threads=2)) as client, ThreadPoolExecutor(2) as pool:
        slow = [pool.submit(client.get, "/api/explain?id=1&result=2") for _ in range(2)]
        for _ in slow:
            assert running_now.acquire(timeout=60)
        for answer in (
            client.get("/api/search?id=1"),
            client.post("/api/search", content=encoded(picture(1))),
        ):
            refused(answer, 503)
            assert answer.headers["retry-after"] == "1"
        assert client.get("/healthz").status_code == 200  # what costs nothing is still answered
        assert client.get("/api/images/1/thumbnail").status_code == 200
        go_on.set()
        assert [one.result().status_code for one in slow] == [200, 200]
        assert client.get("/api/search?id=1").status_code == 200


def test_too_many_connections_are_put_off(client, monkeypatch):
    monkeypatch.setattr(guard, "MAX_ACTIVE", 0)
    answer = client.get("/healthz")
    refused(answer, 503)
    assert answer.headers["retry-after"] == "1"


def test_slow_clients_do_not_keep_others_waiting(client):
    parts = urlsplit(str(client.base_url))
    slow = []
    for number in range(40):  # many more than there are threads
        raw = socket.create_connection((parts.hostname, parts.port), timeout=60)
        half = (
            b"GET /hea"
            if number % 2
            else b"POST /api/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900\r\n\r\nabc"
        )
        raw.sendall(half)
        slow.append(raw)
    assert client.get("/api/search?id=1").status_code == 200
    assert client.post("/api/search", content=encoded(picture(1))).status_code == 200
    for raw in slow:
        raw.close()


def test_silent_connections_are_closed(folders, monkeypatch):
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
    with running(create_app(folders[:1])) as address:
        parts = urlsplit(address)
        with socket.create_connection((parts.hostname, parts.port), timeout=60) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\nhost: lo")
            assert raw.recv(100) == b""  # closed


def test_it_listens_on_this_machine_alone_unless_told(folders, monkeypatch):
    opened = []
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: opened.extend(sockets))
    run_server(folders[:1], port=0)
    assert opened[0].getsockname()[0] == "127.0.0.1"
    with pytest.warns(UserWarning, match="can search and mark: give a --token"):
        run_server(folders[:1], host="0.0.0.0", port=0)
    assert opened[1].getsockname()[0] == "0.0.0.0"
    run_server(folders[:1], host="0.0.0.0", port=0, token=TOKEN)
    for one in opened:
        one.close()


def test_nothing_is_unpickled(client, monkeypatch):
    import pickle

    import torch

    def refuse(*_, **__):
        raise AssertionError("unpickled")

    for module, name in ((pickle, "loads"), (pickle, "load"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    assert client.get("/api/indexes").status_code == 200
    assert client.post("/api/search", content=encoded(picture(1))).status_code == 200
