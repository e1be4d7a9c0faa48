"""Measure the search page's server, and attack it.

Speed: what HTTP adds to a search by the library, besides the model (searches by id, which need none), and 16
clients with 200 requests each. Attack: requests that a stranger may send, mutated images, bombs, wrong paths,
names, origins, lengths and parameters, broken HTTP. A failure is an answer of 500, a traceback in an answer,
a hang over 20 s, or the end of the server; its memory is printed before and after.

Run: PYTHONPATH=src python benchmarks/serving.py [--hostile 10000] [--clients 16] [--requests 200]
"""

import argparse
import http.client
import io
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
import torch
from PIL import Image

from firstpage.data import Catalog
from firstpage.models.embedder import Embedder
from firstpage.search import Index

IMAGES = 2000
TIMEOUT = 20.0
Answer = tuple[int, bytes]


def main() -> int:
    """Measure and attack; return 1 if anything failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hostile", type=int, default=10_000, help="hostile requests")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=200, help="of each client")
    parser.add_argument("--index", type=Path, help="an index, instead of one of 2,000 small images")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="serving-") as scratch:
        folder = options.index or build(Path(scratch))
        command = [sys.executable, "-m", "firstpage", "serve", str(folder), "--port", "0"]
        with open(Path(scratch, "log"), "w+") as log:
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            assert server.stdout is not None
            address = urlsplit(server.stdout.readline().split()[0])
            place = (address.hostname or "", address.port or 0)
            try:
                measure_overhead(place, folder)
                failed = measure_clients(place, options.clients, options.requests)
                failed += attack(place, server, options.hostile, options.seed) if options.hostile else 0
            finally:
                server.terminate()
                server.wait(30)
            log.seek(0)
            errors = [line for line in log if "Error" in line or "failed" in line]
            print(f"lines of errors in the server's log: {len(errors)}", *errors[:5])
    return 1 if failed or errors else 0


def build(scratch: Path) -> Path:
    """Make an index of small images."""
    draws = np.random.default_rng(0)
    names = [f"{number}.jpg" for number in range(IMAGES)]
    for name in names:
        picture(draws).save(scratch / name)
    torch.manual_seed(0)
    model = Embedder.create(backbone="small", dim=128, stored=64, crop=64, standardize=True)
    labels = np.arange(IMAGES) % 50
    catalog = Catalog("noise", scratch, names, labels, [f"class {number}" for number in range(50)], {})
    return Index.build(scratch / "index", model, catalog, cache=scratch / "cache", progress=False).folder


def picture(draws: np.random.Generator, size: tuple[int, int] = (96, 80)) -> Image.Image:
    """Return a picture of a few soft spots."""
    return Image.fromarray(draws.integers(0, 256, (5, 6, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str) -> bytes:
    """Return an image as a file."""
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def connect(place: tuple[str, int]) -> http.client.HTTPConnection:
    """Return a connection to the server."""
    return http.client.HTTPConnection(*place, timeout=TIMEOUT)


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b"") -> Answer:
    """Send a request and read its answer."""
    connection.request(method, path, body or None)
    answer = connection.getresponse()
    return answer.status, answer.read()


def measure_overhead(place: tuple[str, int], folder: Path, repeats: int = 300) -> None:
    """Print what HTTP adds to a search by the library that needs no model."""
    index = Index.open(folder)
    ids = [int(index.ids[number % len(index)]) for number in range(repeats)]
    library, remote = [], []
    with closing(connect(place)) as connection:
        for id in ids:
            begin = time.perf_counter()
            index.search(ids=[id], k=20)
            library.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            assert ask(connection, "GET", f"/api/search?id={id}&k=20")[0] == 200
            remote.append(time.perf_counter() - begin)
    one, other = statistics.median(library), statistics.median(remote)
    print(
        f"search by id, {len(index):,} images: library {1000 * one:.2f} ms, HTTP {1000 * other:.2f} ms, "
        f"added {1000 * (other - one):.2f} ms (medians of {repeats})"
    )


def measure_clients(place: tuple[str, int], clients: int, requests: int) -> int:
    """Print how long many clients at once wait for uploaded images to be searched by; return the failures."""
    draws = np.random.default_rng(1)
    files = [encoded(picture(draws, (640, 480)), "JPEG") for _ in range(16)]

    def run(number: int) -> list[tuple[int, float]]:
        times = []
        with closing(connect(place)) as connection:
            for turn in range(requests):
                begin = time.perf_counter()
                file = files[(number + turn) % len(files)]
                status, _ = ask(connection, "POST", "/api/search?k=20", file)
                times.append((status, time.perf_counter() - begin))
        return times

    begin = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        done = [one for times in pool.map(run, range(clients)) for one in times]
    rate = len(done) / (time.perf_counter() - begin)
    seconds = sorted(took for _, took in done)
    failed = sum(status != 200 for status, _ in done)
    print(
        f"{clients} clients × {requests} uploads of 640 × 480 JPEGs: {failed} errors, "
        f"{rate:.0f} requests/s, p50 {1000 * seconds[len(done) // 2]:.0f} ms, "
        f"p95 {1000 * seconds[int(0.95 * len(done))]:.0f} ms, longest {1000 * seconds[-1]:.0f} ms"
    )
    return failed


def attack(place: tuple[str, int], server: subprocess.Popen[str], count: int, seed: int) -> int:
    """Send hostile requests from eight clients, print what was answered, and return the failures."""
    kinds = list(ATTACKS)
    answers: Counter[str] = Counter()
    failures: list[str] = []

    def run(number: int) -> None:
        draws = random.Random(f"{seed}/{number}")
        kind = kinds[number % len(kinds)]
        try:
            status, body = ATTACKS[kind](place, draws)
        except TimeoutError:
            failures.append(f"{kind} {number}: no answer in {TIMEOUT:.0f} s")
            return
        except (OSError, http.client.HTTPException):
            status, body = 0, b""  # it closed the connection: fine, if it lives
        answers[f"{status // 100}xx" if status else "closed"] += 1
        if status >= 500 and status != 503:
            failures.append(f"{kind} {number}: {status} {body[:200]!r}")
        if any(trace in body for trace in (b"Traceback", b'File "', b"site-packages", b"root:")):
            failures.append(f"{kind} {number}: tells of its inside: {body[:200]!r}")

    def send(first: int, upto: int) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(run, range(first, upto)))

    steps = [count * number // 10 for number in range(11)]
    begin, grown = time.perf_counter(), []
    for first, upto in pairwise(steps):
        send(first, upto)
        grown.append(f"{memory(server.pid) / 2**20:.0f}")
    seconds = time.perf_counter() - begin
    with closing(connect(place)) as connection:
        alive = ask(connection, "GET", "/healthz")[0] == 200 and server.poll() is None
    print(
        f"{count:,} hostile requests of {len(kinds)} kinds: {len(failures)} failures, "
        f"{dict(sorted(answers.items()))}, "
        f"{count / seconds:.0f} a second; the server {'lives' if alive else 'is dead'} with "
        f"{open_files(server.pid)} open files; MiB of memory after each tenth: {' '.join(grown)}"
    )
    for failure in failures[:10]:
        print(" ", failure)
    return len(failures) + (not alive)


def memory(process: int) -> int:
    """Return the resident memory of a process, in bytes."""
    text = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(text.split("VmRSS:")[1].split()[0])


def open_files(process: int) -> int:
    """Return the number of files and sockets that a process has open."""
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


# ---- the attacks

FILES = [
    encoded(picture(np.random.default_rng(7), (200, 160)), kind)
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF")
]


def once(place: tuple[str, int], method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    """Send a request on a connection of its own."""
    with closing(connect(place)) as connection:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in ({"host": "localhost", "content-length": str(len(body))} | headers).items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read()


def raw(place: tuple[str, int], content: bytes) -> Answer:
    """Send bytes and read what comes back."""
    with closing(socket.create_connection(place, timeout=TIMEOUT)) as connection:
        connection.sendall(content)
        answer = connection.recv(2**16)
    status = answer[9:12]
    return (int(status) if status.isdigit() else 0), answer


def route(draws: random.Random) -> str:
    """Return a route that takes an image."""
    return draws.choice(["/api/search?k=5", "/api/explain?result=3", "/api/search?k=5&box=0.1,0.1,0.9,0.9"])


def mutated(place: tuple[str, int], draws: random.Random) -> Answer:
    """Send an image with some bytes changed, or cut off."""
    content = bytearray(draws.choice(FILES))
    for _ in range(draws.randint(1, 20)):
        content[draws.randrange(len(content))] = draws.randrange(256)
    return once(place, "POST", route(draws), bytes(content[: draws.randint(1, len(content))]))


def bomb(place: tuple[str, int], draws: random.Random) -> Answer:
    """Send a small PNG that claims to be a huge image."""
    size = draws.choice([(50_000, 50_000), (2**31 - 1, 1), (30_000, 30_000), (2**17, 2**10)])
    parts = []
    for name, data in (
        (b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(2**20), 9)),
        (b"IEND", b""),
    ):
        parts.append(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))
    return once(place, "POST", route(draws), b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def no_image(place: tuple[str, int], draws: random.Random) -> Answer:
    """Send something else than an image."""
    contents = [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        b"\xff\xd8\xff\xe0\x00\x10JFIF\x00<html><script>alert(1)</script>",
        b"GIF89a/*<html>*/=1;",
        b"\x80\x04\x95cposix\nsystem\n(S'id'\ntR.",
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        draws.randbytes(draws.randint(1, 5000)),
    ]
    return once(place, "POST", route(draws), draws.choice(contents))


def paths(place: tuple[str, int], draws: random.Random) -> Answer:
    """Ask for files that are none of its own."""
    up = draws.choice(["../", "..%2f", "%2e%2e/", "..%5c", "%252e%252e/", "//", "%00"]) * draws.randint(1, 8)
    front = draws.choice(["/static/", "/", "/api/images/", "/api/images/1/"])
    return once(
        place, "GET", front + up + draws.choice(["etc/passwd", "app.py", "index.json", "feedback.jsonl"])
    )


def parameters(place: tuple[str, int], draws: random.Random) -> Answer:
    """Ask with wrong parameters."""
    wheres = [
        "(" * 500,
        "label == " * 50,
        "not " * 300 + "label == 'x'",
        "__import__('os').system('id')",
        "label in [" + "1," * 500,
    ]
    query = draws.choice(
        [
            f"id={draws.choice(['-1', '1e9', 'x', '9' * 30, '', 'NaN', '1;drop'])}",
            f"id=1&k={draws.choice(['0', '-5', '1000000000', '1.5', 'inf'])}",
            f"id=1&fold={draws.choice(['nan', 'inf', '-1', 'x'])}",
            f"id=1&box={draws.choice(['nan,nan,nan,nan', '1,1,0,0', '0,0,inf,1', ',,,', '0,0,1e-9,1'])}",
            f"id=1&where={quote(draws.choice(wheres))}",
            f"id=1&index={draws.choice(['2', '-1', 'x'])}",
        ]
    )
    return once(
        place,
        draws.choice(["GET", "POST"]),
        f"{draws.choice(['/api/search', '/api/explain', '/api/marks'])}?{query}",
    )


def strangers(place: tuple[str, int], draws: random.Random) -> Answer:
    """Ask from another site, or under another name."""
    headers = draws.choice(
        [
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec_fetch_site": "cross-site"},
            {"host": "evil.example"},
            {"host": "127.0.0.1.evil.example:8000"},
            {"host": "a" * 3000},
            {"x_forwarded_for": "127.0.0.1", "host": "evil.example"},
        ]
    )
    return once(place, "POST", "/api/marks?id=1&result=2&right=true", **headers)


def lengths(place: tuple[str, int], draws: random.Random) -> Answer:
    """Lie about the length of a body."""
    length = draws.choice(["-1", "99999999999", "x", "1e3", "0x10", "33554433", "+5", "5, 5"])
    return raw(
        place,
        f"POST /api/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\nabcde".encode(),
    )


def many_headers(place: tuple[str, int], draws: random.Random) -> Answer:
    """Send ten thousand headers, or one of megabytes."""
    lines = draws.choice([b"x: 1\r\n" * 10_000, b"x-" + b"a" * 2**20 + b": 1\r\n", b"x: 1\r\n" * 150])
    return raw(place, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + lines + b"\r\n")


def broken_http(place: tuple[str, int], draws: random.Random) -> Answer:
    """Send what is no HTTP."""
    post = b"POST /api/search HTTP/1.1\r\nhost: localhost\r\n"
    return raw(
        place,
        draws.choice(
            [
                draws.randbytes(200) + b"\r\n\r\n",
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET http://evil.example/ HTTP/1.1\r\nhost: evil.example\r\n\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
                b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
                post + b"transfer-encoding: chunked\r\n\r\nZZ\r\n\r\n",
                post + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
                b"GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100) + b"\r\n\r\n",
            ]
        ),
    )


def half(place: tuple[str, int], draws: random.Random) -> Answer:
    """Go away in the middle of a request."""
    body = b"POST /api/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000\r\n\r\n" + bytes(500)
    with closing(socket.create_connection(place, timeout=TIMEOUT)) as connection, suppress(OSError):
        connection.sendall(body[: draws.randint(1, len(body))])
    return 0, b""


ATTACKS: dict[str, Callable[[tuple[str, int], random.Random], Answer]] = {
    attack.__name__: attack
    for attack in (
        mutated,
        bomb,
        no_image,
        paths,
        parameters,
        strangers,
        lengths,
        many_headers,
        broken_http,
        half,
    )
}

if __name__ == "__main__":
    sys.exit(main())
