"""A small shop, an index of it, and a real server in a thread of this process."""

import io
import threading
import time
from contextlib import contextmanager

import httpx
import numpy as np
import torch
import uvicorn
from PIL import Image

from firstpage.data import Catalog
from firstpage.models.embedder import Embedder
from firstpage.search import Index
from firstpage.serve.server import configure, open_socket

NAMES = [f"{kind}/{number}.png" for kind in ("cup", "mug", "pot") for number in range(4)]


def picture(seed, size=(80, 60)):
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def build_index(folder, shop, seed=0):
    torch.manual_seed(seed)
    model = Embedder.create(backbone="small", dim=8, stored=32, crop=32, standardize=True).eval()
    labels = np.array([("cup", "mug", "pot").index(name[:3]) for name in NAMES], np.int64)
    prices = [str(10 * number) for number in range(12)]
    catalog = Catalog("shop", shop, NAMES, labels, ["cup", "mug", "pot"], {}, columns={"price": prices})
    return Index.build(folder, model, catalog, cache=folder.parent / "cache", progress=False)


@contextmanager
def running(app):
    """Serve an application at a free port, in a thread of this process, and yield its address."""
    listening = open_socket("127.0.0.1", 0)
    server = uvicorn.Server(configure(app))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


@contextmanager
def client_of(app, **options):
    with running(app) as address, httpx.Client(base_url=address, timeout=60, **options) as client:
        yield client
