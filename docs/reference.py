"""What the docs build adds to mkdocstrings: doctests shown as code, and a check for missing public names."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path
from typing import Any

import griffe

log = logging.getLogger("mkdocs.hooks.reference")  # its warnings fail a strict build
PACKAGES = Path("src/firstpage")


class FenceDoctests(griffe.Extension):
    """A Griffe extension that puts every doctest of a docstring into a code fence.

    Markdown would read bare `>>>` lines as nested quotations.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401
        """Rewrite the docstring of `obj` before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)


def fence(text: str) -> str:
    """Return `text` with its doctests in fences; each ends at a blank line, as for Python's `doctest`."""
    lines: list[str] = []
    indent: str | None = None
    for line in [*text.splitlines(), ""]:
        if indent is None and line.lstrip().startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```pycon")
        elif indent is not None and not line.strip():
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    return "\n".join(lines[:-1])


def on_post_build(config: Any) -> None:  # noqa: ANN401
    """Warn about public names of packages that the API reference does not show (an MkDocs event)."""
    pages = Path(config["site_dir"], "api").rglob("*.html")
    anchors = {
        anchor for page in pages for anchor in re.findall(r'id="(firstpage\.[^"]+)"', page.read_text())
    }
    for file in sorted(PACKAGES.glob("*/__init__.py")):
        package = f"firstpage.{file.parent.name}"
        for name in public_names(file):
            if (file.parent / f"{name}.py").exists() and file.parent.name not in ("losses", "mining"):
                continue  # Griffe takes such a name for the module
            shown = {f"{package}.{name}", f"{package}.{name}.{name}"} & anchors
            is_package = (file.parent / name).is_dir()
            if not shown and not (is_package and any(a.startswith(f"{package}.{name}.") for a in anchors)):
                log.warning("%s.%s is public, but not in the API reference", package, name)


def public_names(file: Path) -> list[str]:
    """Return the names in `__all__` of a module, without importing it."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
    return []
