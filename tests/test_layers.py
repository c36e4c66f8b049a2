"""The way of the data has one direction: who may import whom, and who may load JAX or Streamlit."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# DESIGN's order: none of these may reach, directly or through others, one that stands after it.
ORDER = (
    "plain", "masks", "problem", "record", "compare", "then", "cost", "device", "support", "backends", "numerics",
    "steps", "evidence", "memory", "clock", "measure", "recover", "heads", "experiments", "readings", "path", "engine",
    "metrics", "access", "recordings", "charts", "charts_steps", "charts_masks", "charts_heads", "charts_compare",
    "report", "scenes", "tape", "headline", "stage", "rehearse", "ui", "cli", "__main__",
)  # fmt: skip
HEAVY = ("jax", "jaxlib", "flax", "transformer_engine")


def sources() -> Iterator[tuple[str, Path]]:
    """Top-level name within the package (a folder counts as one module) and file."""
    for path in sorted((ROOT / "explorer").rglob("*.py")):
        parts = path.relative_to(ROOT / "explorer").with_suffix("").parts
        if parts != ("__init__",):
            yield parts[0], path


def imports(node: ast.AST) -> Iterator[str]:
    """Dotted names that an import statement brings in."""
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from (f"{node.module}.{name.name}" for name in node.names)


@functools.cache
def graph() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for module, path in sources():
        known = found.setdefault(module, set())
        for node in ast.walk(ast.parse(path.read_text())):
            known |= {name.split(".")[1] for name in imports(node) if name.startswith("explorer.")}
        known.discard(module)
    return found


def reached(found: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in found.get(waiting.pop(), set()) - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """What runs when the module is imported: no function bodies, nothing under `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def loaded_by(statement: str, *names: str) -> list[str]:
    """Which of the names are among the modules after the statement, in a process of its own."""
    code = f"import json, sys\n{statement}\nprint(json.dumps([n for n in {names!r} if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_named_module_is_there() -> None:
    assert set(ORDER) - {"recordings"} <= {module for module, _ in sources()}


@pytest.mark.parametrize("module", ORDER)
def test_imports_point_one_way(module: str) -> None:
    found = graph()
    below = set(ORDER[ORDER.index(module) + 1 :])
    assert not reached(found, module) & below


def test_no_circle() -> None:
    found = graph()
    assert not [module for module in found if module in reached(found, module)]


def test_the_walk_sees_a_wrong_import() -> None:
    """Broken on purpose: were cost to import engine through record, it would be seen."""
    found = graph() | {"record": {"engine"}, "cost": {"record"}}
    assert "engine" in reached(found, "cost")


def test_jax_is_imported_in_functions_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for _, path in [*sources(), *((p.stem, p) for p in (ROOT / "pages").glob("*.py"))]
        for node in at_import(ast.parse(path.read_text()))
        for name in imports(node)
        if name.split(".")[0] in HEAVY
    ]
    assert not wrong


def test_streamlit_is_known_to_ui_pages_and_shell_only() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for module, path in sources()
        if module != "ui"
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imports(node)
        if name.split(".")[0] == "streamlit"
    ]
    assert not wrong


def test_pages_hold_no_arithmetic_and_are_short() -> None:
    for path in sorted((ROOT / "pages").glob("*.py")):
        text = path.read_text()
        sums = [
            ast.unparse(node)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitOr | ast.Mod)
        ]
        assert not sums, f"{path.name} computes: {sums}"
        assert len(text.splitlines()) <= 80, f"{path.name} is longer than a page should be"


def test_every_page_is_in_the_menu_and_guarded() -> None:
    from explorer.ui import shell

    listed = {entry.file for entries in shell.MENU.values() for entry in entries}
    for path in sorted((ROOT / "pages").glob("*.py")):
        assert path.name in listed
        assert "shell.guard()" in path.read_text()


def test_importing_the_whole_package_loads_no_jax() -> None:
    modules = [
        "explorer." + ".".join(path.relative_to(ROOT / "explorer").with_suffix("").parts).removesuffix(".__init__")
        for _, path in sources()
        if path.name != "__main__.py"
    ]
    assert loaded_by(f"import {', '.join(modules)}", *HEAVY) == []


def test_asking_what_is_supported_loads_nothing_heavy() -> None:
    heavy = (*HEAVY, "streamlit", "pandas", "altair", "distributed")
    assert loaded_by("import explorer.support, explorer.backends", *heavy) == []
