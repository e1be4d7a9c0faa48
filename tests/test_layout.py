"""The layout of the package: imports point one way, names are unique, files and functions stay short."""

import ast
import functools
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import firstpage

SOURCE = Path(firstpage.__file__).parent

# Each package imports only from those above it.
LAYERS = [
    {"_text"},
    {"errors", "_lazy", "_spelling", "_terminal"},
    {"_types", "_plugins", "durable"},
    {"_reading"},
    {"recipes"},
    {"_sphere"},
    {"pairs"},
    {"mining"},
    {"losses"},
    {"data"},
    {"models"},
    {"evaluation"},
    {"runs"},
    {"search"},
    {"training"},
    {"serve"},
    {"figures"},
    {"report"},
    {"compare"},
    {"demo"},
    {"cli"},
    {"__main__", "__init__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


@functools.cache
def modules():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(("firstpage", *path.relative_to(SOURCE).with_suffix("").parts))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found.append((name.removesuffix(".__init__") or "firstpage", path, tree))
    return found


@functools.cache
def imported(tree):
    """Every module of the package that a file imports, also within functions and for type checkers."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide where a name comes from"
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                found.append(module if is_module(module) else node.module)
    return found


@functools.cache
def is_module(name):
    path = SOURCE.parent / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or path.is_dir()


def part_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_every_part_has_a_layer():
    there = {info.name for info in pkgutil.iter_modules([str(SOURCE)])}
    assert there | {"__init__"} == set(LEVEL)


def test_imports_between_packages_point_one_way():
    wrong = []
    for name, path, tree in modules():
        own = "__init__" if path == SOURCE / "__init__.py" else part_of(name)
        for target in imported(tree):
            if target.split(".")[0] != "firstpage":
                continue
            other = part_of(target)
            if other == "__init__":  # `import firstpage` for its version
                continue
            if own != other and LEVEL[other] >= LEVEL[own]:
                wrong.append(f"{name} imports {target}")
    assert not wrong


def test_no_module_imports_itself_in_a_circle():
    graph = {}
    for name, path, tree in modules():
        if path != SOURCE / "__init__.py":
            graph[name] = {target for target in imported(tree) if target.startswith("firstpage.")} - {name}
    done, on_the_way = set(), []

    def visit(name):
        if name in done or name not in graph:
            return
        assert name not in on_the_way, " -> ".join([*on_the_way[on_the_way.index(name) :], name])
        on_the_way.append(name)
        for target in sorted(graph[name]):
            visit(target)
        on_the_way.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)


def test_no_module_has_a_function_of_its_own_name():
    """`from package import name` would be one or the other; losses and mining keep theirs beside a class."""
    for name, path, tree in modules():
        if part_of(name) not in ("losses", "mining"):
            own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            assert path.stem not in own or path.stem.startswith("_"), path


def test_files_of_the_training_loop_stay_short():
    for path in (SOURCE / "training").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 250, path


def test_functions_stay_short():
    for _, path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and path.parent.name not in ("losses", "mining"):
                length = node.end_lineno - node.lineno + 1
                assert length <= 85 if path.name == "pairs.py" else length <= 80, f"{path}: {node.name}"


@pytest.mark.parametrize(
    "package", ["firstpage", *(f"firstpage.{name}" for name in sorted(LEVEL) if name[0] != "_")]
)
def test_public_names_are_there(package):
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", ()):
        assert getattr(module, name) is not None


TRAIN = """
import os
from PIL import Image
for number in range(24):
    folder = f"photos/{number // 4}"
    os.makedirs(folder, exist_ok=True)
    Image.new("RGB", (32, 32), (number, 200 - 7 * number, 90)).save(f"{folder}/{number}.png")
small = ["model.backbone=small", "model.stored=32", "model.crop=32", "batch.size=8", "schedule.epochs=1"]
arguments = [text for change in small for text in ("--set", change)]
main(["train", "--data", "photos", "--out", "run", "--cache", "cache", "--device", "cpu", *arguments])
"""


@pytest.mark.parametrize(
    ("commands", "modules"),
    [
        (
            [
                "import firstpage.recipes, firstpage.data.splits, firstpage.data.check",
                "import firstpage.runs.run_data",
                "main(['--help'])",
                "main(['list', 'tables'])",
                "main(['recipe', 'cub-tokp'])",
                "main(['train', 'cub-tokp'])",
                "main(['train', 'nowhere', '--set', 'k=3'])",
                "main(['train', '--data', 'nowhere'])",
                "main(['baseline', '--data', 'nowhere'])",
                "main(['data', 'check', 'nowhere'])",
            ],
            ["torch"],
        ),
        # the second loads every backbone; models that are loaded or trained import the compiler neither
        (
            ["main(['evaluate', 'nowhere'])", "main(['list', 'backbones'])", TRAIN],
            ["matplotlib", "torch._dynamo"],
        ),
    ],
)
def test_what_needs_no_slow_package_does_not_import_it(commands, modules, tmp_path):
    check = f"""
import sys
from firstpage.cli import main
for command in {commands!r}:
    try:
        exec(command)
    except SystemExit:
        pass
    assert not {{*{modules!r}}} & sys.modules.keys(), command
"""
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "best").exists() == (TRAIN in commands), done.stderr
