"""The code blocks of these pages are doctests: each page runs in an empty folder with a cache of its own."""

from pathlib import Path

import pytest

collect_ignore = ["reference.py"]  # belongs to the docs build, which `make test` does not install


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIRSTPAGE_CACHE", str(tmp_path / "cache"))
