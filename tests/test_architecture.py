"""The shape of the package: who imports whom, what an import costs, who reads what."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import mcp

import pml_gateway
from pml_gateway.gc_pause import collection_put_off

PACKAGE = Path(pml_gateway.__file__).parent
STAGES = (
    "json_text",
    "secrets",
    "storage",
    "config",
    "clients",
    "docs",
    "telemetry",
    "processes",
    "skills",
    "mcp",
    "upstreams",
    "catalog",
    "index",
    "trust",
    "example_queries",
    "exposure",
    "policy",
    "activity",
    "results",
    "workflow",
    "gateway",
    "meta",
    "fastmcp",
    "serve",
    "reports",
    "owner",
    "local",
    "service",
    "setup",
    "demo",
    "console",
    "cli",
)
"""The folders in the order of the data's flow: each imports only those before it."""

SHARED = frozenset(
    {
        "background",
        "delivery",
        "environment",
        "errors",
        "files",
        "foreign_json",
        "gc_pause",
        "hosts",
        "installation",
        "log",
        "paths",
        "regular_files",
        "quotas",
        "signal",
        "text",
        "types",
        "working_directory",
    }
)
"""Modules at the root that every folder may use, and that use no folder."""

ENTRANCES = frozenset({"__init__", "__main__"})
"""The package's own names and its command, which come from all over it."""

HEAVY = ("mcp", "fastmcp", "torch", "sentence_transformers", "onnxruntime", "faiss", "starlette")

ENVIRONMENT_READERS = {
    "cli/app.py": "PML_DEBUG shows the traceback even when the configuration is broken",
    "cli/docs.py": "has less pass colours, unless the user configured it",
    "cli/context.py": "hands the environment to config/",
    "cli/local.py": "hands the environment to service/, which says where units lie",
    "cli/service.py": "hands the environment to service/, which keeps PATH, PML_HOME and PML_CONFIG for logins",
    "demo/walkthrough.py": "a home of its own that leaves the user's alone",
    "demo/servers/__init__.py": "the demo servers are programs of their own",
    "gateway/approval_notices.py": "where the program for notifications is, and how it reaches the desktop",
    "index/models.py": "tells libraries that report home, before they load, not to",
    "local/entry.py": "what the bridge tells the gateway of its client, before configuration is read",
    "local/starting.py": "the allow-list of what a detached gateway inherits",
    "paths.py": "where the gateway's files are",
    "example_queries/writers.py": "what the owner's language model is configured with, and where it is installed",
    "secrets/env_file.py": "where the file of stored values is",
    "secrets/references.py": "`${env:NAME}`",
    "setup/approval.py": "hands the environment to config/",
    "telemetry/setup.py": "hands the environment to config/",
    "working_directory.py": "the variables of this process, as one client's among others",
}
"""Readers of the environment beside config/ and clients/, with the reason."""


REPORTING = frozenset({"onnxruntime", "sentence_transformers", "transformers", "huggingface_hub"})
"""Libraries that send reports of their use to their makers, unless they are told not to before they load."""

PRIVATE_USE = re.compile(r"(?<!self)(?<!cls)\._[a-z]|import .*\b_[a-z]|attr\(.*\"_[a-z]")
OF_LIBRARIES = frozenset({"_count", "_current_frames", "_exit", "_send"})
"""Private names of the standard library and starlette that tests cannot do without."""


@cache
def modules() -> dict[str, ast.Module]:
    """Each module's tree by its path in the package."""
    with collection_put_off():
        return {
            str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8"))
            for path in sorted(PACKAGE.rglob("*.py"))
        }


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Everything in a tree."""
    return tuple(ast.walk(tree))


def imported(tree: ast.Module) -> Iterator[tuple[str, ...]]:
    """The modules of the package that one imports, also for type checkers only, as parts of their path."""
    for node in nodes(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("pml_gateway"):
            continue
        base = tuple((node.module or "").split("."))[1:]
        for alias in node.names:
            whole = (*base, alias.name)
            if f"{'/'.join(whole)}.py" in modules():
                yield whole
            elif base:
                yield base


@cache
def called(tree: ast.Module) -> set[str]:
    """The called names and the attributes read, as written."""
    return {ast.unparse(node) for node in nodes(tree) if isinstance(node, ast.Attribute)} | {
        node.func.id for node in nodes(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def place_of(parts: tuple[str, ...]) -> int:
    """Where a module stands in the order of imports; what is shared stands before everything."""
    return -1 if parts[0] in SHARED else STAGES.index(parts[0])


def test_imports_are_absolute_and_point_to_earlier_folders_only() -> None:
    offenders = [
        f"{module} imports {'.'.join(target)}"
        for module, tree in modules().items()
        for target in imported(tree)
        if (own := tuple(module.removesuffix(".py").split("/")))[-1:] != ("__main__",)
        and own != ("__init__",)
        and place_of(target) > place_of(own)
    ]
    relative = [
        module
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not offenders
    assert not relative


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The groups in which everything reaches everything else."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            for target in arrows.get(ahead.pop(), set()) - found:
                found.add(target)
                ahead.append(target)
        return found

    ways = {each: reached(each) for each in arrows}
    return sorted(
        sorted(other for other in ways if other in ways[each] and each in ways[other])
        for each in arrows
        if each in ways[each] and each == min(o for o in ways if o in ways[each] and each in ways[o])
    )


def test_no_modules_and_no_folders_import_each_other_in_a_circle() -> None:
    between_modules: dict[str, set[str]] = {}
    between_folders: dict[str, set[str]] = {}
    for module, tree in modules().items():
        own = tuple(module.removesuffix(".py").split("/"))
        if own[0] in ENTRANCES:
            continue
        for target in imported(tree):
            between_modules.setdefault("/".join(own), set()).add("/".join(target))
            folder = target if PACKAGE.joinpath(*target).is_dir() else target[:-1]
            if folder != own[:-1]:
                between_folders.setdefault("/".join(own[:-1]), set()).add("/".join(folder))
    assert not circles(between_modules)
    assert not circles(between_folders)


def test_every_module_says_what_it_is_for_and_belongs_to_a_stage() -> None:
    for module, tree in modules().items():
        assert ast.get_docstring(tree), f"{module}: what is it for?"
        first = module.removesuffix(".py").split("/")[0]
        assert first in {*STAGES, *SHARED, *ENTRANCES}, f"{module} belongs to no stage"


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
    assert not loaded_by("from pml_gateway.cli.app import Commands; dict(Commands())") & {*HEAVY, "numpy"}


def test_only_the_configuration_reads_the_environment() -> None:
    readers = {
        module
        for module, tree in modules().items()
        if {"os.environ", "os.getenv", "os.environb", "os.putenv"} & called(tree)
    }
    assert {each for each in readers if not each.startswith(("config/", "clients/"))} <= ENVIRONMENT_READERS.keys()


def test_only_answers_and_the_protocol_go_to_standard_output() -> None:
    streams = {"sys.stdout", "sys.stdout.write", "sys.stdout.buffer"}
    writers = {module for module, tree in modules().items() if streams & called(tree)}
    assert not [module for module, tree in modules().items() if "print" in called(tree)]
    assert not [module for module in writers if not module.startswith(("cli/", "serve/stdio.py"))]


def test_only_the_configuration_reads_yaml_and_toml() -> None:
    loaders = {"ruamel", "yaml", "tomllib", "tomlkit", "dotenv"}
    readers = {
        module
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in loaders
    }
    assert not [module for module in readers if not module.startswith(("config/", "clients/", "secrets/"))]


def test_only_storage_opens_sqlite_files() -> None:
    users = {
        module
        for module, tree in modules().items()
        for node in nodes(tree)
        if (isinstance(node, ast.Import) and "sqlite3" in {alias.name for alias in node.names})
        or (isinstance(node, ast.ImportFrom) and node.module == "sqlite3")
    }
    # The servers of the demo are programs of their own.
    assert {module for module in users if not module.startswith(("storage/", "demo/servers/"))} == set()


def test_libraries_that_report_home_are_loaded_in_one_place_only() -> None:
    repository = PACKAGE.parent
    offenders = []
    for folder in ("pml_gateway", "models", "benchmarks", "tests"):
        for path in sorted((repository / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if not any(name in text for name in REPORTING):
                continue
            for node in ast.walk(ast.parse(text)):
                named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if REPORTING & {name.partition(".")[0] for name in named}:
                    offenders.append(f"{path.relative_to(repository)}: {ast.unparse(node)}")
    assert not offenders, "load them by pml_gateway.index.models.library"


def private(names: Iterable[str]) -> set[str]:
    """The names that are meant for their owner."""
    return {name for name in names if name.startswith("_") and not name.endswith("__")}


def methods(node: ast.AST) -> set[str]:
    """What the classes in a tree define as functions."""
    return {
        part.name
        for each in (nodes(node) if isinstance(node, ast.Module) else ast.walk(node))
        if isinstance(each, ast.ClassDef)
        for part in each.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def attributes(tree: ast.Module, *uses: type[ast.expr_context]) -> set[str]:
    """The attributes that are used so, of whatever object."""
    return {each.attr for each in nodes(tree) if isinstance(each, ast.Attribute) and isinstance(each.ctx, uses)}


def fields(tree: ast.Module) -> set[str]:
    """Names that are declared with a type."""
    declared = (each.target for each in nodes(tree) if isinstance(each, ast.AnnAssign))
    return {target.id for target in declared if isinstance(target, ast.Name)}


def test_the_private_parts_of_the_sdk_are_used_in_one_module_only() -> None:
    root = Path(mcp.__file__).parent
    with collection_put_off():
        sdk = [ast.parse(path.read_text(encoding="utf-8")) for path in root.rglob("*.py")]
        hidden = private({name for tree in sdk for name in methods(tree) | attributes(tree, ast.Store)})
    offenders = []
    for module, tree in modules().items():
        if module == "mcp/sdk.py":
            continue
        imports = [
            (f"{node.module}.{alias.name}", alias.asname or alias.name)
            for node in nodes(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("mcp", "mcp_types")
            for alias in node.names
        ]
        used = attributes(tree, ast.Load) - attributes(tree, ast.Store) - methods(tree) - fields(tree)
        for node in nodes(tree):
            bases = (
                {ast.unparse(base).partition("[")[0] for base in node.bases} if isinstance(node, ast.ClassDef) else ()
            )
            if {name for _, name in imports} & set(bases):
                used |= methods(node)
        offenders += [f"{module} uses {name}" for name in sorted(used & hidden)]
        offenders += [f"{module} imports {path}" for path, _ in imports if private(path.split("."))]
    assert not offenders


def test_no_test_uses_the_private_parts_of_what_it_tests() -> None:
    offenders = []
    for path in sorted((PACKAGE.parent / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not PRIVATE_USE.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            named: list[str] = []
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
                    continue
                case ast.Attribute(attr=name) | ast.Call(args=[_, ast.Constant(value=str(name)), *_]):
                    named = [name]
                case ast.ImportFrom(module=str(module), names=names) if module.startswith(("pml_gateway", "tests")):
                    named = [*module.split("."), *(alias.name for alias in names)]
            offenders += [f"{path.name}: {each}" for each in private(named) - OF_LIBRARIES]
    assert not offenders
