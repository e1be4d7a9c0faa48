"""Files that are whole or not there: any number of writers, kills, full disks."""

import ast
import errno
import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import firstpage
from firstpage import durable
from firstpage.data.catalog import Catalog
from firstpage.data.check import check_dataset
from firstpage.errors import UserError

SOURCE = Path(firstpage.__file__).parent


def python(code, *arguments, **options):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], text=True, **options)


WRITER = """
import sys
from firstpage import durable
for turn in range(10):
    durable.write(sys.argv[1], bytes([int(sys.argv[2]) + turn]) * int(sys.argv[3]))
"""


def test_eight_processes_that_write_one_file_leave_one_of_theirs_whole(tmp_path):
    target, size = tmp_path / "figure.png", 300_000
    durable.write(target, bytes(size))
    writers = [python(WRITER, target, 10 * number, size) for number in range(8)]
    reads = 0
    while reads == 0 or any(writer.poll() is None for writer in writers):
        content = target.read_bytes()
        assert content == content[:1] * size
        reads += 1
    assert [writer.wait() for writer in writers] == [0] * 8
    assert os.listdir(tmp_path) == ["figure.png"]


def test_threads_of_one_process_as_well(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(durable.write, tmp_path / "x", bytes([number]) * 10**5) for number in range(64)]
    assert [future.result() for future in done] == [None] * 64
    content = (tmp_path / "x").read_bytes()
    assert content == content[:1] * 10**5
    assert os.listdir(tmp_path) == ["x"]


KILLED = """
import sys
from firstpage import durable

def fill(file):
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    sys.stdin.read()

durable.write(sys.argv[1], fill)
"""


@pytest.mark.parametrize(
    "name", ["model.onnx", "x" * 250, "ä" * 125, "*?[a].b"], ids=["plain", "long", "wide", "glob"]
)
def test_the_next_write_removes_what_killed_ones_left_but_not_what_is_being_written(tmp_path, name):
    target = tmp_path / name
    durable.write(target, b"old")
    killed = [python(KILLED, target, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.stdout.readline() for process in killed] == ["ready\n"] * 2
    for process in killed:
        process.kill()
        process.communicate()
    assert len(os.listdir(tmp_path)) == 3
    begun, end = threading.Event(), threading.Event()

    def slowly(file):
        file.write(b"slow")
        file.flush()
        begun.set()
        end.wait(60)

    with ThreadPoolExecutor() as pool:
        slow = pool.submit(durable.write, target, slowly)
        assert begun.wait(60)
        durable.write(target, b"quick")
        assert target.read_bytes() == b"quick"
        assert len(os.listdir(tmp_path)) == 2  # the part of the slow one is still there
        assert all(other == name or other.startswith(".") for other in os.listdir(tmp_path))
        end.set()
        slow.result()
    assert target.read_bytes() == b"slow"
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("why", ["no locks", "another machine"])
def test_where_locks_say_nothing_only_old_leftovers_are_removed(tmp_path, monkeypatch, why):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def leave(_):
        (part,) = tmp_path.glob("*.part")
        for path in (old, new):
            part.with_name(f"{part.name[:-13]}{path}").write_bytes(b"half")

    old, new = "00000000.part", "00000001.part"
    durable.write(tmp_path / "x", leave)
    (left,) = tmp_path.glob(f"*{old}")
    os.utime(left, (0, 0))
    if why == "no locks":
        monkeypatch.setattr("fcntl.flock", no_locks)
    else:
        monkeypatch.setattr("platform.node", lambda: "elsewhere")
    durable.write(tmp_path / "x", b"whole")
    assert [name[-13:] for name in sorted(os.listdir(tmp_path))] == [new, "x"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError, OSError])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    def fail(file):
        file.write(b"new")
        raise failure

    durable.write(tmp_path / "x", b"old")
    with pytest.raises(failure):
        durable.write(tmp_path / "x", fail)
    assert (tmp_path / "x").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_links_stay_links_and_pipes_are_written_to(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    durable.write(tmp_path / "link", b"whole")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_bytes() == b"whole"
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as pool:
        read = pool.submit((tmp_path / "pipe").read_bytes)
        durable.write(tmp_path / "pipe", b"whole")
        assert read.result() == b"whole"
    durable.write("/dev/null", b"whole")


@contextmanager
def disk_of(size):
    """Within this context, no file can grow beyond this size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_figure_of_a_check(tmp_path):
    catalog = Catalog("x", tmp_path, [], np.zeros(0, np.int64), [], {})
    report = check_dataset(catalog, workers=0, progress=False)
    target = tmp_path / "figure.png"
    target.write_bytes(b"old")
    with disk_of(1000), pytest.raises(OSError, match=r"figure\.png") as error:
        report.figure(target)
    assert error.value.errno in durable.FULL
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["figure.png"]
    report.figure(target)
    assert target.read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(UserError, match=r"figure\.xyz: .*choose .*png"):
        report.figure(tmp_path / "figure.xyz")


# What writes into a file of a given name. Everything goes through `durable.write`, but for these.
OTHERS = {
    ("data/download.py", "extractall"): "into a folder that is renamed when it is complete",
    (
        "data/file_download.py",
        "fdopen",
    ): "a download is resumed from its part, and renamed when it is complete",
    ("data/framing.py", "open"): "a worker of the store builder",
    ("data/glyphs.py", "save"): "into a folder that is renamed when it is complete",
    ("data/glyphs.py", "write_text"): "into a folder that is renamed when it is complete",
    ("data/store.py", "memmap"): "reads",
    ("search/ray_embedding.py", "save"): "an embedder, which writes its files by durable.write",
    ("search/search_commands.py", "save"): "a picture, into memory",
    ("search/segment.py", "memmap"): "vectors, to read: changes to the copy in memory are not written",
    ("search/segment.py", "save"): "thumbnails, into memory",
    ("data/store_builder.py", "open"): "pixels and a journal in a folder that is renamed when it is complete",
    ("data/store_builder.py", "write_bytes"): "a journal whose lines check themselves",
    ("data/stream.py", "touch"): "the time of a folder of pixels",
    ("data/worker.py", "dump"): "a pipe",
    ("data/worker.py", "fdopen"): "a pipe",
    ("data/workers.py", "dump"): "a pipe",
    ("durable.py", "open"): "itself",
    ("search/changes.py", "save"): "the model and its calibration, which use durable.write",
    ("runs/calibrating.py", "save"): "a calibration, which uses durable.write",
    ("runs/embedding_file.py", "write_table"): "into the file of durable.write",
    ("runs/folder.py", "open"): "a log that lines are added to",
    ("runs/folder.py", "save"): "marks, which use durable.write",
    ("training/loop.py", "save"): "of Embedder and Checkpoints, which use it",
    ("training/members.py", "save"): "of Embedder, which uses it",
}
WRITERS = {
    *("write_text", "write_bytes", "touch", "fdopen", "mkstemp", "NamedTemporaryFile", "urlretrieve"),
    *("save", "savefig", "savez", "savez_compressed", "savetxt", "tofile", "memmap", "open_memmap", "dump"),
    *(
        "copyfile",
        "copy2",
        "copytree",
        "move",
        "extractall",
        "to_csv",
        "to_parquet",
        "write_table",
        "save_file",
    ),
}


def test_every_file_is_written_by_durable_write():
    """A new way to write a file goes through `durable.write`, or needs a reason above."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (name := _writer(node)):
                found[path.relative_to(SOURCE).as_posix(), name] = ast.unparse(node)
    assert {place: call for place, call in found.items() if place not in OTHERS} == {}


def _writer(call):
    """Return the name of a function that writes into a file of a given name, or ""."""
    method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if method else getattr(call.func, "id", "")
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name in ("open", "FileIO"):
        parts = [part for value in values for part in ast.walk(value)]
        modes = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
        flags = [part.attr for part in parts if isinstance(part, ast.Attribute)]
        writes = any(set(mode) <= set("rwabxt+") and set(mode) & set("wax+") for mode in modes)
        return name if writes or {"O_WRONLY", "O_RDWR", "O_CREAT"} & {*flags} else ""
    if name == "save" and not method:  # of safetensors, which returns bytes, and of figures, which uses it
        return ""
    opened = call.args and isinstance(call.args[0], ast.Name) and call.args[0].id in ("buffer", "file")
    return name if name in WRITERS and not opened else ""


@pytest.mark.parametrize(
    "code",
    [
        *(
            "path.write_text('')",
            "figure.savefig(path)",
            "np.save(path, x)",
            "open(path, 'w' if new else 'r')",
        ),
        *("path.open(mode='ab')", "open(path, 'r+b')", "os.open(path, os.O_CREAT | os.O_WRONLY)"),
        *("shutil.copyfile(a, b)", "json.dump(x, open(path, 'x'))", "image.save(folder / 'x.png')"),
    ],
)
def test_what_the_search_finds(code):
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert any(map(_writer, calls))


@pytest.mark.parametrize(
    "code", ["open(path)", "path.open('rb')", "np.save(file, x)", "durable.write(path, save(x))", "x.copy()"]
)
def test_what_the_search_leaves_alone(code):
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert not any(map(_writer, calls))
