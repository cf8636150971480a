"""Layers point downwards only: a module imports from its own layer or a lower one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent / "shoal"

LAYER = {
    "cli": 6, "serve": 6,
    "doctor": 5, "sql": 5, "flow": 5, "engines": 5,
    "catalog": 4,
    "table": 3,
    "lsm": 2,
    "format": 1, "store": 1,
}  # fmt: skip
# What may be imported from a lower layer only to name types.
SIBLINGS_APART = {"format": {"store"}, "store": {"format"}}


def layer(module: str) -> int:
    parts = module.split(".")
    return LAYER.get(parts[1], 0) if len(parts) > 1 else 4


@cache
def text(path: Path) -> str:
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    """The module's syntax; to parse all modules takes seconds, so look at their `text` first."""
    return ast.parse(text(path))


def named(path: Path) -> list[str]:
    """What lines that look like imports name of shoal, types or not."""
    return re.findall(r"^\s*(?:from|import)\s+(shoal[\w.]*)", text(path), re.MULTILINE)


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, only for types) of every shoal import in a file."""
    out: list[tuple[str, bool]] = []

    def walk(node: ast.AST, typing_only: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inside = typing_only
            if isinstance(child, ast.If) and dotted(child.test).endswith("TYPE_CHECKING"):
                inside = True
            if isinstance(child, ast.ImportFrom) and child.module and child.module.split(".")[0] == "shoal":
                out.append((child.module, inside))
            elif isinstance(child, ast.Import):
                out.extend((a.name, inside) for a in child.names if a.name.split(".")[0] == "shoal")
            walk(child, inside)

    walk(tree(path), False)
    return out


def dotted(node: ast.expr) -> str:
    """`time.time` of such a call's function; nothing of what is no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def modules() -> list[tuple[str, Path]]:
    return [
        (".".join(("shoal", *p.relative_to(ROOT).with_suffix("").parts)), p)
        for p in sorted(ROOT.rglob("*.py"))
        if p != ROOT / "__init__.py"
    ]


def test_every_import_points_to_the_same_or_a_lower_layer() -> None:
    wrong = [
        f"{name} (layer {layer(name)}) imports {target} (layer {layer(target)})"
        for name, path in modules()
        if any(layer(target) > layer(name) for target in named(path))
        for target, typing_only in imports(path)
        if layer(target) > layer(name) and not typing_only and not (target == "shoal" and layer(name) >= 4)
    ]
    assert wrong == []


def test_format_and_store_do_not_import_each_other() -> None:
    wrong = [
        f"{name} imports {target}"
        for name, path in modules()
        if name.split(".")[1] in SIBLINGS_APART
        for target, typing_only in imports(path)
        if not typing_only
        and target.split(".")[1:2]
        and target.split(".")[1] in SIBLINGS_APART.get(name.split(".")[1], ())
    ]
    assert wrong == []


def test_only_the_clock_reads_the_time() -> None:
    wrong = []
    for name, path in modules():
        if name == "shoal.clock" or not re.search(r"time\s*\.", text(path)):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and dotted(node.func) in (
                "time.time", "time.time_ns", "time.sleep", "time.monotonic", "time.perf_counter", "datetime.now", "datetime.utcnow",
            ):  # fmt: skip
                wrong.append(f"{name}:{node.lineno} {dotted(node.func)}")
    assert wrong == []


def test_every_module_says_what_it_is_for() -> None:
    spoken = re.compile(r'(#[^\n]*\n|\s)*r?"""\s*[^"\s]')
    silent = [name for name, path in modules() if path.name != "__init__.py" and not spoken.match(text(path))]
    assert silent == []


def test_package_inits_hold_re_exports_only() -> None:
    for init in ROOT.rglob("__init__.py"):
        if init == ROOT / "__init__.py":
            continue
        body = ast.parse(init.read_text()).body
        kinds = {type(n) for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))}
        assert kinds <= {ast.ImportFrom, ast.Import, ast.Assign}, init
