import errno
import hashlib
import importlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from firstpage.data import download, file_download
from firstpage.data.download import _extract, _File, _Source, download_dataset


class Handler(BaseHTTPRequestHandler):
    """Serves the bytes of `server.content`, as badly as the server's settings say."""

    def do_GET(self):
        server = self.server
        server.requests.append(dict(self.headers))
        if server.errors:
            self.send_error(server.errors.pop(0))
            return
        content, start = server.content, 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        same = self.headers.get("If-Range") in (
            None,
            server.headers.get("ETag"),
            server.headers.get("Last-Modified"),
        )
        if server.ranges and asked and same:
            start = int(asked[1])
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if server.lengths:
            self.send_header("Content-Length", str(len(content) - start))
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        end = min(len(content), server.cuts.pop(0)) if server.cuts else len(content)
        self.wfile.write(content[start:end])
        server.release.wait(60)  # then the connection closes

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.errors, server.cuts = [], [], []
    server.release = threading.Event()
    server.release.set()
    server.ranges, server.lengths, server.headers = True, True, {"ETag": '"one"'}
    server.content = archive({"birds/images/1.jpg": b"wren" * 300_000, "birds/images.txt": b"1 1.jpg\n"})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(file_download, "_PAUSE", 0.0)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def archive(files, kind="tgz"):
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as opened:
            for name, content in files.items():
                opened.writestr(name, content)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=0) as opened:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                opened.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def birds(server, monkeypatch):
    """Make the server the publisher of `birds`; with the checksum of what it serves, or another."""

    def offer(name="birds.tgz", sha256="right", size=None):
        known = hashlib.sha256(server.content).hexdigest() if sha256 == "right" else sha256
        file = _File(f"http://127.0.0.1:{server.server_port}/{name}", name, size, known)
        source = _Source("http://birds.example", "birds/images.txt, ...", (file,), "birds")
        monkeypatch.setitem(download._SOURCES, "birds", source)

    offer()
    return offer


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_whole(folder):
    assert names(folder) == ["birds"]
    assert (folder / "birds/images/1.jpg").read_bytes() == b"wren" * 300_000
    assert (folder / "birds/images.txt").read_text() == "1 1.jpg\n"


@pytest.mark.parametrize("progress", [False, True])
def test_downloads_checks_and_opens(server, birds, tmp_path, progress):
    text = download_dataset("birds", tmp_path / "new" / "folder", progress=progress)
    assert text == f"birds: {tmp_path / 'new' / 'folder'} contains birds/images.txt, ..."
    assert_whole(tmp_path / "new" / "folder")
    assert len(server.requests) == 1


def test_zip_as_well(server, birds, tmp_path):
    server.content = archive(
        {"birds/images/1.jpg": b"wren" * 300_000, "birds/images.txt": b"1 1.jpg\n"}, "zip"
    )
    birds(name="birds.zip")
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)


def test_what_is_there_is_not_downloaded_again(server, birds, tmp_path):
    (tmp_path / "birds").mkdir()
    assert download_dataset("birds", tmp_path) == f"birds: {tmp_path / 'birds'} already exists"
    assert not server.requests


def test_an_archive_that_was_there_is_only_opened(server, birds, tmp_path):
    (tmp_path / "birds.tgz").write_bytes(server.content)
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)
    assert not server.requests


def test_goes_on_after_each_cut(server, birds, tmp_path):
    server.cuts = [100_000, 100_001, 250_000]
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)
    asked = [(request.get("Range"), request.get("If-Range")) for request in server.requests]
    assert asked == [(None, None), *((f"bytes={cut}-", '"one"') for cut in (100_000, 100_001, 250_000))]


CHILD = """
import sys
from firstpage.data import download
file = download._File(sys.argv[1], "birds.tgz", None, sys.argv[2])
download._SOURCES["birds"] = download._Source("", "", (file,), "birds")
download.download_dataset("birds", sys.argv[3], progress=False)
"""


def test_goes_on_after_a_kill(server, birds, tmp_path):
    (file,) = download._SOURCES["birds"].files
    server.cuts, part = [700_000], tmp_path / "birds.tgz.part"
    server.release = threading.Event()  # the connection stays open until then
    with subprocess.Popen([sys.executable, "-c", CHILD, file.url, file.sha256, str(tmp_path)]) as process:
        deadline = time.monotonic() + 60
        while not part.exists() or part.stat().st_size < 500_000:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    server.release.set()
    length = part.stat().st_size
    assert names(tmp_path) == ["birds.tgz.lock", "birds.tgz.part", "birds.tgz.part.version"]
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)
    assert [request.get("Range") for request in server.requests] == [None, f"bytes={length}-"]


FILE_CHILD = """
import sys
from pathlib import Path
from firstpage.data.file_download import download_file
download_file(sys.argv[1], Path(sys.argv[2]), sha256=sys.argv[3], progress=False)
"""


def test_a_second_process_waits_for_the_download_of_the_first(server, birds, tmp_path, capfd):
    (file,) = download._SOURCES["birds"].files
    target = tmp_path / "birds.tgz"
    server.cuts, server.release = [700_000], threading.Event()  # the first request ends when it is set
    with subprocess.Popen([sys.executable, "-c", FILE_CHILD, file.url, target, file.sha256]) as process:
        deadline = time.monotonic() + 60
        while not server.requests:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        release = threading.Timer(0.3, server.release.set)
        release.start()
        assert file_download.download_file(file.url, target, sha256=file.sha256) == file.sha256
    release.join()
    assert process.returncode == 0
    assert [request.get("Range") for request in server.requests] == [None, "bytes=700000-"]
    assert names(tmp_path) == ["birds.tgz"]
    assert "another process is downloading" in " ".join(capfd.readouterr().err.split())


def test_a_beginning_of_the_checksum_will_do(server, birds, tmp_path):
    (file,) = download._SOURCES["birds"].files
    target = tmp_path / "birds.tgz"
    for _ in range(2):
        digest = file_download.download_file(file.url, target, sha256=file.sha256[:8], progress=False)
        assert digest == file.sha256
    assert len(server.requests) == 1
    target.unlink()
    wrong = "0" * 8 if file.sha256[:8] != "0" * 8 else "1" * 8
    with pytest.raises(ValueError, match=rf"sha256 is {file.sha256}, not {wrong}; removed it"):
        file_download.download_file(file.url, target, sha256=wrong, progress=False)


def test_without_locks_it_downloads_as_well(server, birds, tmp_path, monkeypatch):
    def no_locks(*_, **__):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("filelock.FileLock.acquire", no_locks)
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)


def test_gives_up_when_nothing_more_comes_and_keeps_what_came(server, birds, tmp_path):
    server.cuts = [100_000] * 10
    with pytest.raises(
        OSError, match="the connection was lost; kept the first 100,000 bytes, run it again to resume"
    ):
        download_dataset("birds", tmp_path, progress=False)
    assert (tmp_path / "birds.tgz.part").read_bytes() == server.content[:100_000]
    assert len(server.requests) == 1 + 5


def test_starts_over_where_the_server_sends_whole_files_only(server, birds, tmp_path):
    server.ranges, server.cuts = False, [100_000]
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)
    assert server.requests[1]["Range"] == "bytes=100000-"


def test_starts_over_when_the_file_has_changed(server, birds, tmp_path):
    birds(sha256=None)
    (tmp_path / "birds.tgz.part").write_bytes(b"an older version")
    (tmp_path / "birds.tgz.part.version").write_text('"zero"')
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)
    assert server.requests[0]["If-Range"] == '"zero"'


def test_starts_over_when_nothing_tells_the_version(server, birds, tmp_path):
    birds(sha256=None)
    server.headers = {"ETag": 'W/"weak"'}
    server.cuts = [100_000]
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)
    assert "Range" not in server.requests[1]


def test_the_date_tells_the_version_where_the_tag_is_weak(server, birds, tmp_path):
    birds(sha256=None)
    server.headers = {"ETag": 'W/"weak"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
    server.cuts = [100_000]
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)
    assert server.requests[1]["If-Range"] == "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize("extra", [b"", b"too much"])
def test_a_part_that_is_whole_already_or_too_long(server, birds, tmp_path, extra):
    (tmp_path / "birds.tgz.part").write_bytes(server.content + extra)
    (tmp_path / "birds.tgz.part.version").write_text('"one"')
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)
    assert len(server.requests) == (2 if extra else 1)


def test_a_cut_without_a_length_is_seen_by_the_published_size(server, birds, tmp_path):
    server.lengths, server.cuts = False, [100_000]
    birds(size=len(server.content))
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)
    assert len(server.requests) == 2


@pytest.mark.parametrize("lengths", [True, False])
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("sha256", ["right", None])
@pytest.mark.parametrize("difference", [-1, 1, -1_000_000])
def test_anything_but_the_published_size_is_refused(
    server, birds, tmp_path, lengths, ranges, sha256, difference
):
    server.lengths, server.ranges = lengths, ranges
    birds(sha256=sha256, size=len(server.content) + difference)
    with pytest.raises((ValueError, OSError), match=r"bytes or more, not the published|was lost"):
        download_dataset("birds", tmp_path, progress=False)
    assert not (tmp_path / "birds.tgz").exists()
    part = tmp_path / "birds.tgz.part"
    assert not part.exists() or part.stat().st_size <= len(server.content) + difference


def test_an_endless_file_of_unknown_size_is_given_up(server, birds, tmp_path, monkeypatch):
    server.lengths = False
    monkeypatch.setattr(file_download, "_MOST", 500_000)
    with pytest.raises(ValueError, match="not at most 500,000: it is another file"):
        download_dataset("birds", tmp_path, progress=False)
    assert not (tmp_path / "birds.tgz.part").exists()


def drip(server, before):
    """Serve any number of connections: these bytes, then one more every hundredth of a second."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            try:
                connection.sendall(before)
                while True:
                    connection.sendall(b"0")
                    time.sleep(0.01)
            except OSError:
                continue


@pytest.mark.parametrize(
    "before",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 500,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1f4\r\n" + b"x" * 500 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX-",
    ],
    ids=["content", "chunk", "header"],
)
def test_a_dripping_server_is_given_up(tmp_path, monkeypatch, before):
    monkeypatch.setattr(file_download, "_WINDOW", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server, before))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        try:
            with pytest.raises(OSError, match="the server sends less than 1,000 bytes per second") as error:
                file_download.download_file(url, tmp_path / "x", progress=False)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
    if before.endswith(b"x" * 500):
        assert "; kept the first 5" in str(error.value)
        assert (tmp_path / "x.part").read_bytes().startswith(b"x" * 500)


def test_a_byte_per_connection_is_dripping_too(server, birds, tmp_path, monkeypatch):
    monkeypatch.setattr(file_download, "_WINDOW", 0.2)
    server.cuts = range_of_cuts()
    with pytest.raises(OSError, match="sends less than 1,000 bytes per second; kept the first"):
        download_dataset("birds", tmp_path, progress=False)


def range_of_cuts():
    """A list without an end: each time it is asked, one byte more, after a while."""

    class Cuts(list):
        def pop(self, _):
            time.sleep(0.02)
            self.append(None)
            return len(self)

    return Cuts([None])


@pytest.mark.parametrize("headers", [{"ETag": '"a\r\n b"'}, {"ETag": '"\xff"'}, {"Content-Range": "x"}])
def test_headers_that_make_no_sense(server, birds, tmp_path, headers):
    server.headers, server.cuts = headers, [100_000]
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)


@pytest.mark.parametrize("length", ["-1", "many", "9" * 30])
def test_lengths_that_make_no_sense(server, birds, tmp_path, length):
    server.lengths, server.headers = False, {"Content-Length": length}
    with suppress(OSError):
        download_dataset("birds", tmp_path, progress=False)


@pytest.mark.parametrize("name", ["birds.tgz.part", "birds.tgz.part.version", ".birds.tgz.extracting"])
@pytest.mark.parametrize("kind", ["file", "folder", "nothing", "hard", "fifo"])
def test_planted_links_are_neither_followed_nor_kept(server, birds, tmp_path, name, kind):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    folder.mkdir()
    if kind == "folder":
        elsewhere.mkdir()
        (elsewhere / "private").write_bytes(b"mine")
    elif kind != "nothing":
        elsewhere.write_bytes(b"mine")
    if kind == "fifo":
        os.mkfifo(folder / name)
    elif kind == "hard":
        os.link(elsewhere, folder / name)
    else:
        (folder / name).symlink_to(elsewhere)
    download_dataset("birds", folder, progress=False)
    assert_whole(folder)
    if kind == "folder":
        assert names(elsewhere) == ["private"]
    elif kind == "nothing":
        assert not elsewhere.exists()
    else:
        assert elsewhere.read_bytes() == b"mine"


def test_a_wrong_checksum_leaves_nothing(server, birds, tmp_path):
    birds(sha256="0" * 64)
    right = hashlib.sha256(server.content).hexdigest()
    with pytest.raises(ValueError, match=rf"sha256 is {right}, not 0+; removed it, try again$"):
        download_dataset("birds", tmp_path, progress=False)
    assert names(tmp_path) == []


def test_a_part_of_something_else_is_found_out_by_the_checksum(server, birds, tmp_path):
    (tmp_path / "birds.tgz.part").write_bytes(b"x" * 1000)
    with pytest.raises(ValueError, match="sha256 is"):
        download_dataset("birds", tmp_path, progress=False)
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)


def test_an_unknown_checksum_is_said_and_computed(server, birds, tmp_path):
    birds(sha256=None)
    digest = hashlib.sha256(server.content).hexdigest()
    text = download_dataset("birds", tmp_path, progress=False)
    assert f"birds.tgz: its checksum is not known; its sha256 is {digest}\n" in text


def test_what_is_not_there_is_asked_for_once(server, birds, tmp_path):
    server.errors = [404]
    with pytest.raises(OSError, match=r"HTTP 404 Not Found; the publisher's page is http://birds.example$"):
        download_dataset("birds", tmp_path, progress=False)
    assert len(server.requests) == 1
    assert names(tmp_path) == []


def test_a_busy_server_is_asked_again(server, birds, tmp_path):
    server.errors = [503, 429, 500]
    download_dataset("birds", tmp_path, progress=False)
    assert_whole(tmp_path)


def test_an_unreachable_server(server, birds, tmp_path, monkeypatch):
    file = _File("http://127.0.0.1:9/birds.tgz", "birds.tgz", None, None)
    monkeypatch.setitem(download._SOURCES, "birds", _Source("http://birds.example", "", (file,), "birds"))
    with pytest.raises(OSError, match=r"refused.*; the publisher's page is http://birds.example") as error:
        download_dataset("birds", tmp_path, progress=False)
    assert "\n" not in str(error.value)


def link(name, target, kind=tarfile.SYMTYPE):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as opened:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, target
        opened.addfile(entry)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("birds.tgz", archive({"birds/1.jpg": b"", "../outside": b"x"})),
        ("birds.tgz", archive({"birds/1.jpg": b"", "birds/../../outside": b"x"})),
        ("birds.tgz", link("birds", "/etc")),
        ("birds.tgz", link("birds", "../..")),
        ("birds.tgz", link("birds", "/etc/passwd", tarfile.LNKTYPE)),
        ("birds.tgz", link("birds", "", tarfile.CHRTYPE)),
        ("birds.tgz", archive({"birds/1.jpg": b"x" * 100_000})[:50_000]),
        ("birds.tgz", b"<html>please log in</html>"),
        ("birds.tgz", b""),
        ("birds.zip", archive({"birds/1.jpg": b"", "../outside": b"x"}, "zip")),
        ("birds.zip", archive({"birds/1.jpg": b"", "/outside": b"x"}, "zip")),
        ("birds.zip", archive({"birds/1.jpg": b"", "..\\outside": b"x"}, "zip")),
        ("birds.zip", archive({"birds/1.jpg": b"x" * 1000}, "zip").replace(b"x" * 1000, b"y" * 1000)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # archives hold the time: ids must not
)
def test_bad_archives_are_refused_and_nothing_is_extracted(tmp_path, name, content):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"; nothing was extracted$") as error:
        _extract(folder / name, folder, last="birds")
    assert "\n" not in str(error.value)
    assert names(folder) == [name]
    assert names(tmp_path) == ["data"]


def test_a_python_without_safe_extraction_is_told(tmp_path, monkeypatch):
    monkeypatch.delattr(tarfile, "data_filter")
    (tmp_path / "birds.tgz").write_bytes(archive({"birds/1.jpg": b""}))
    with pytest.raises(ValueError, match=r"needs Python 3\.11\.4 or newer.*; nothing was extracted$"):
        _extract(tmp_path / "birds.tgz", tmp_path, last="birds")
    assert names(tmp_path) == ["birds.tgz"]


def test_extraction_cleans_up_after_a_killed_one_and_overwrites_no_folder(tmp_path):
    (tmp_path / "birds.tgz").write_bytes(archive({"birds/1.jpg": b"new", "notes.txt": b"new"}))
    (tmp_path / ".birds.tgz.extracting").mkdir()
    (tmp_path / ".birds.tgz.extracting" / "half").touch()
    (tmp_path / "birds").mkdir()
    with pytest.raises(ValueError, match="birds exists already, move or remove it; nothing was extracted"):
        _extract(tmp_path / "birds.tgz", tmp_path, last="birds")
    assert names(tmp_path) == ["birds", "birds.tgz"]
    (tmp_path / "birds").rmdir()
    _extract(tmp_path / "birds.tgz", tmp_path, last="birds")
    assert names(tmp_path) == ["birds", "birds.tgz", "notes.txt"]


def test_others_get_the_page_and_the_layout(tmp_path):
    for name in ("cars", "inshop", "hotels50k", "casia"):
        text = download_dataset(name, tmp_path / "data")
        assert re.match(
            rf"{name}: its publisher offers it at https?://\S+\nPut into {tmp_path}/data: \S+", text
        )
    assert names(tmp_path) == []


def test_published_sources_are_complete():
    for source in download._SOURCES.values():
        assert source.page.startswith("http")
        assert bool(source.files) == bool(source.result)
        for file in source.files:
            assert file.url.startswith("http")
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)


def test_unknown_name(tmp_path):
    with pytest.raises(
        ValueError, match=r"dataset 'nabirds': no such name; the names are glyphs, cub, sop, lfw, cars"
    ):
        download_dataset("nabirds", tmp_path)


def test_glyphs_are_drawn(tmp_path, monkeypatch):
    module = importlib.import_module("firstpage.data.glyphs")
    monkeypatch.setattr(module, "_draw", lambda folder, *_, **__: folder.mkdir(parents=True))
    assert (
        download_dataset("glyphs", tmp_path / "glyphs") == f"glyphs: 10,144 images in {tmp_path / 'glyphs'}"
    )
