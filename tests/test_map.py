"""The map of the package, held against its folders and against what requests enter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import pml_gateway
from benchmarks.run_way import Entry, measure
from tests.test_architecture import SHARED, STAGES

PACKAGE = Path(pml_gateway.__file__).parent
MAP = (PACKAGE / "README.md").read_text(encoding="utf-8")
WAYS = {"A list": "cached list", "A call": "direct call", "A search": "search_tools"}
"""What the map calls a way, and what the tracer calls it."""


def purpose(folder: Path) -> str:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def folders() -> Iterator[Path]:
    """In the order of imports; folders within a folder after it."""
    for stage in STAGES:
        yield PACKAGE / stage
        yield from sorted(each.parent for each in (PACKAGE / stage).glob("*/__init__.py"))


def way(title: str) -> list[str]:
    """The modules of one way, in its order."""
    section = MAP.partition(f"**{title}**")[2].partition("\n\n")[2].partition("\n\n")[0]
    return re.findall(r"^\d+\. `([^`]+)`", section, re.MULTILINE)


def test_the_table_has_every_folder_in_the_order_of_imports_with_its_purpose() -> None:
    expected = [f"| `{folder.relative_to(PACKAGE)}/` | {purpose(folder)} |" for folder in folders()]
    assert [line for line in MAP.splitlines() if re.match(r"\| `\S+/` \|", line)] == expected
    assert [name for name in sorted(SHARED) if f"`{name}.py`" not in MAP] == []


def test_every_module_that_the_map_names_exists() -> None:
    named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", MAP))
    assert len(named) > 40
    assert [each for each in sorted(named) if not (PACKAGE / each).exists()] == []


@pytest.fixture(scope="module")
def measured() -> dict[str, list[Entry]]:
    return anyio.run(measure)


@pytest.mark.parametrize("title", WAYS)
def test_a_request_enters_the_modules_of_its_way_in_the_order_of_the_map(
    measured: dict[str, list[Entry]], title: str
) -> None:
    modules = way(title)
    entered = dict.fromkeys(entry.file for entry in measured[WAYS[title]])
    assert len(modules) > 5
    assert [each for each in entered if each in modules] == modules
