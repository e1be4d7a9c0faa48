"""The data package depends on nothing above it, and recipes on neither data nor torch."""

import ast
import re
from pathlib import Path

import pytest

import firstpage

ROOT = Path(firstpage.__file__).parent


def imported(file):
    """The modules that a file imports, within functions as well."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from named if node.module == "firstpage" else [node.module]


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("data", r"(?!firstpage).*|firstpage\.(data\b.*|errors|durable|_spelling|_lazy|recipes\.settings)"),
        (
            "recipes",
            r"(?!firstpage|torch).*|firstpage\.(recipes\b.*|errors|durable|_spelling|_lazy)",
        ),
    ],
)
def test_a_package_imports_only_what_is_below_it(package, allowed):
    modules = {(file.name, name) for file in (ROOT / package).rglob("*.py") for name in imported(file)}
    assert len(modules) > 10
    assert {(file, name) for file, name in modules if not re.fullmatch(allowed, name)} == set()
