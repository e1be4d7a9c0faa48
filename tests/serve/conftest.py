"""A small shop, two indexes of it, and a client of their server."""

import pytest

from firstpage.serve import create_app
from support.serving import NAMES, build_index, client_of, picture


@pytest.fixture(autouse=True, scope="module")
def _one_thread(one_thread):
    return one_thread


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """The files: four cups, mugs and pots; cup/3 is nearly cup/2."""
    root = tmp_path_factory.mktemp("files") / "shop"
    for seed, name in enumerate(NAMES):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        picture(2 if name == "cup/3.png" else seed).save(root / name)
    return root


@pytest.fixture
def index(shop, tmp_path):
    """An index that a test may change."""
    return build_index(tmp_path / "index", shop)


@pytest.fixture(scope="module")
def folders(shop, tmp_path_factory):
    """The folders of two indexes of the shop, by two models."""
    root = tmp_path_factory.mktemp("indexes")
    return [build_index(root / name, shop, seed).folder for seed, name in enumerate(("first", "second"))]


@pytest.fixture(scope="module")
def client(folders):
    """A client of a server of both indexes, without a token."""
    with client_of(create_app(folders)) as client:
        yield client
