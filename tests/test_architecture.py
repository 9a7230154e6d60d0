"""The shape of the package: who imports whom, how large a module is, what an import costs, who reads what."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pml_gateway

PACKAGE = Path(pml_gateway.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
STAGES = (
    "config",
    "docs",
    "telemetry",
    "upstreams",
    "catalog",
    "index",
    "exposure",
    "policy",
    "usage",
    "results",
    "workflow",
    "server",
    "cli",
)
SHARED = frozenset({"counting", "errors", "log", "types"})
"""Modules that every stage may use, and that use no stage."""

HEAVY = ("mcp", "fastmcp", "torch", "sentence_transformers", "onnxruntime", "faiss", "starlette")
MAX_LINES = 400

ENVIRONMENT_READERS = {
    "cli/app.py": "PML_DEBUG shows the traceback even when the configuration is broken",
    "cli/context.py": "hands the environment to config/",
    "demo/walkthrough.py": "a home of its own that leaves the user's alone",
    "demo/servers/__init__.py": "the demo servers are programs of their own",
    "upstreams/transport.py": "the allow-list of what a child process inherits",
}
"""Readers of the environment beside config/, with the reason."""


def stage_of(parts: tuple[str, ...]) -> str:
    """The first part below the package; the demo stands where the command line stands."""
    return "cli" if parts[0] == "demo" else parts[0]


def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def imported_stages(module: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            # `from pml_gateway import x` names the stage in its second half.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "pml_gateway" and rest[0] != "__version__":
                yield stage_of(tuple(rest))


def calls_of(module: Path) -> Iterator[str]:
    """The called names and the attributes read, as written."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def name_of(module: Path) -> str:
    return str(module.relative_to(PACKAGE))


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_imports_point_to_earlier_stages_only(module: Path) -> None:
    parts = module.relative_to(PACKAGE).with_suffix("").parts
    used = set(imported_stages(module))
    if parts in (("__init__",), ("__main__",)):
        return
    own = stage_of(parts)
    allowed = set(SHARED) if own in SHARED else set(SHARED).union(STAGES[: STAGES.index(own) + 1])
    assert used <= allowed


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_is_short_and_says_what_it_is(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "the first sentence says what the module turns into what"


def test_every_module_belongs_to_a_stage() -> None:
    known = {*STAGES, *SHARED, "demo", "__init__", "__main__"}
    assert {module.relative_to(PACKAGE).with_suffix("").parts[0] for module in MODULES} <= known


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after one statement, beyond those it starts with."""
    script = (
        f"import sys; before = set(sys.modules); {statement}; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_the_standard_library_at_most() -> None:
    assert loaded_by("import pml_gateway") - {"pml_gateway"} <= sys.stdlib_module_names


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    assert not loaded_by("import pml_gateway.cli.app") & set(HEAVY)


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_only_the_configuration_reads_the_environment(module: Path) -> None:
    place = name_of(module)
    if place.startswith("config/") or place in ENVIRONMENT_READERS:
        return
    assert not {"os.environ", "os.getenv", "os.environb", "os.putenv"} & set(calls_of(module))


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_only_answers_and_the_protocol_go_to_standard_output(module: Path) -> None:
    used = set(calls_of(module))
    assert "print" not in used
    if not name_of(module).startswith(("cli/", "server/stdio.py")):
        assert not {"sys.stdout", "sys.stdout.write", "sys.stdout.buffer"} & used


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_only_the_configuration_reads_yaml(module: Path) -> None:
    loaders = {"ruamel", "yaml", "tomllib", "dotenv"}
    names = {
        (node.module or "").partition(".")[0] for node in ast.walk(tree_of(module)) if isinstance(node, ast.ImportFrom)
    }
    assert not names & loaders or name_of(module).startswith("config/")
