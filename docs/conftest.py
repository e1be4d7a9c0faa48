"""The code blocks of these pages are doctests: each page runs in an empty folder, all with one cache."""

from pathlib import Path

import pytest

collect_ignore = ["reference.py"]  # part of the docs build, whose packages `make test` does not install


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, _cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(_cache))
