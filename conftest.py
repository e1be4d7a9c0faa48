"""One seed for all: the suite is deterministic, and never judges by the clock."""

from pathlib import Path

import hypothesis
import pytest

collect_ignore = ["docs/reference.py"]  # part of the docs build, whose packages `make test` does not install

hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, max_examples=100, database=None
)
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch  # here, as xdist's own process runs no test and starts its workers after this file

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the code blocks of a page in an empty folder; all pages share a cache of the session."""
    if request.node.path.suffix == ".md":
        cache: Path = request.getfixturevalue("tmp_path_factory").getbasetemp() / "cache"
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
        monkeypatch.setenv("FIRSTPAGE_CACHE", str(cache))
