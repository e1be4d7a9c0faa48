"""README and docs stay true: links lead somewhere, and their tables have every name."""

import re
from pathlib import Path

import pytest

from firstpage import compare, data, figures, losses, recipes
from firstpage.models import backbones

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def first_column(name):
    """The names in backticks of the first column of all tables of a page."""
    return {word for cell in re.findall(r"^\| ([^|]+) \|", text(name), re.MULTILINE) for word in named(cell)}


def named(markdown):
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", markdown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page):
    content = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", content):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_doctests_are_marked_as_such_and_end_in_a_blank_line(page):
    """Without the blank line the closing fence would be expected output."""
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
        assert (language == "pycon") == (">>> " in block), block
        assert language != "pycon" or block.endswith("\n\n"), block


def test_tables_of_losses_are_complete():
    assert set(losses.names()) <= first_column("docs/losses.md")
    in_methods = set(named(text("docs/methods.md")))
    assert {name for name in losses.names() if not name.startswith("triplet-")} <= in_methods
    classes = {name for name in losses.__all__ if name[0].isupper()} - {"Loss", "MinedLoss"}
    assert classes <= set(named(text("docs/losses.md")))


def test_tables_of_mining_are_complete():
    from firstpage.mining.negatives import NEGATIVES
    from firstpage.mining.positives import POSITIVES

    assert {*POSITIVES, *NEGATIVES} <= first_column("docs/mining.md")


def test_tables_of_figures_datasets_and_backbones_are_complete():
    assert set(figures.names()) <= first_column("docs/evaluation.md")
    assert set(data.kinds()) <= first_column("docs/data.md")
    assert {*backbones.names(), *recipes.names()} <= set(named(text("docs/recipes.md")))
    assert set(compare.names()) <= first_column("docs/recipes.md")


def test_contributing_lists_every_package():
    packages = {path.parent.name for path in (ROOT / "src/firstpage").glob("*/__init__.py")}
    assert packages <= {name.rstrip("/") for name in first_column("CONTRIBUTING.md")}
