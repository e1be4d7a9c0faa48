"""One seed for all: the suite is deterministic, and never judges by the clock."""

import functools
import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

collect_ignore = ["docs/reference.py"]  # part of the docs build, whose packages `make test` does not install

hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, max_examples=100, database=None
)
hypothesis.settings.load_profile("suite")

# For torch, which is imported later, and all processes of the tests: the same instructions on every CPU, and
# no bfloat16, in which two ways to the same result differ.
os.environ["ATEN_CPU_CAPABILITY"] = "avx2"


# Files that take longest, in this order, so that the workers of `make test` end together.
LONGEST = (
    "test_resume.py",
    "test_backbones.py",
    "test_losses.py",
    "test_browser.py",
    "test_ensembles.py",
    "test_fit.py",
    "test_fit_at_scale.py",
    "test_ray_embedding.py",
    "test_page.py",
    "test_drawing.py",
    "test_ranks.py",
    "test_check.py",
    "test_examples.py",
    "test_engines.py",
    "test_store.py",
    "test_health.py",
    "test_cli.py",
    "test_retrieval.py",
    "test_evaluation.py",
    "test_readers.py",
    "test_journeys.py",
    "test_systems.py",
    "test_papers.py",
    "test_commands.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; within and after them the order stays."""
    items.sort(key=lambda item: (*LONGEST, item.path.name).index(item.path.name))


def pytest_collection_finish() -> None:
    """Let garbage collection pass over what was imported and collected: a twentieth of all processor time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _seeds_cost_nothing() -> Iterator[None]:
    """Without a GPU, torch.manual_seed formats the stack for each kind that there might be: 3 ms a call."""
    import torch  # here, as xdist's own process runs no test and starts its workers after this file

    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(torch, "manual_seed", torch.default_generator.manual_seed)
        yield


@pytest.fixture(autouse=True)
def _seeded(_seeds_cost_nothing: None) -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _no_downloads() -> Iterator[None]:
    """What would be downloaded cannot be: no proxy listens there, and that is known at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("https_proxy", "http://localhost:9")
        patch.setenv("no_proxy", "localhost,127.0.0.1")  # Milvus would ask the proxy, too
        yield


@pytest.fixture(autouse=True, scope="session")
def _commands_built_once() -> None:
    """Typer builds all commands at every call, as a process has but one."""
    import typer.main

    typer.main.get_command = functools.cache(typer.main.get_command)


@pytest.fixture(scope="session")
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the session, the same for all workers."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"


@pytest.fixture(scope="session")
def glyphs_of_two(_shared_cache: Path) -> Any:  # noqa: ANN401
    """The catalog of the built-in data with two images of a class, drawn once: not to be changed."""
    from firstpage.data import read

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIRSTPAGE_CACHE", str(_shared_cache))
        return read("glyphs", images=2)


@pytest.fixture(scope="session")
def first_glyphs(tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: ANN401
    """The first six classes of each split of the built-in data, as they are there: not to be changed.

    To draw all 634 takes 15 s where the user's cache does not have them yet.
    """
    from firstpage.data import glyphs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glyphs, "_TRAIN", {"latin": "41-46"})
        patch.setattr(glyphs, "_TEST", {"greek": "370 372-373 376 37C-37D"})
        return glyphs.draw_glyphs(tmp_path_factory.mktemp("first") / "glyphs")


@pytest.fixture(autouse=True)
def _own_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the code blocks of a page in an empty folder; all pages share a cache of the session."""
    if request.node.path.suffix == ".md":
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
        monkeypatch.setenv("FIRSTPAGE_CACHE", str(request.getfixturevalue("_shared_cache")))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors are slower on two."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, or whichever there is."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: the page is not checked in a browser"
    )
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium here: the page is not checked in a browser")
    with playwright.sync_playwright() as machine:
        chromium = machine.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()
