"""Ajv, as the official TypeScript SDKs use it, compiles every schema that the gateway lists."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import UpstreamListing
from pml_gateway.catalog.wire import tool_for_version
from pml_gateway.types import JsonObject
from tests.support.faulty_schemas import VALUES, faulty_schema

from .install import Installation

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.field("B1")]

SCRIPT = Path(__file__).with_name("ajv.mjs")
SECONDS = 300
TOGETHER = 50
"""Tools in one list."""

PARTS = 8
"""Runs that share the labelled data, so that none takes long."""

VERSIONS = ("2025-11-25", "2026-07-28")
ANSWERS: list[JsonObject] = [
    {},
    {"a": "x"},
    {"a": {"a": [{"a": 1}]}},
    {"b": [{"c": 1}], "d": {"next": {}}, "around": 5},
]


def faults(installation: Installation, lists: Sequence[Sequence[JsonObject]]) -> list[JsonObject]:
    """What keeps clients from lists of tools, or from a verdict about answers."""
    given = [{"tools": tools, "values": ANSWERS} for tools in lists]
    done = subprocess.run(
        [installation.node, SCRIPT, installation.npm],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [each for found in json.loads(done.stdout) for each in found]


def faults_at(version: str, installation: Installation, lists: Sequence[Sequence[JsonObject]]) -> list[JsonObject]:
    """The same for clients of a version; the first SDK parses outputs as objects only."""
    found = faults(installation, lists)
    return [each for each in found if each["where"] != "list"] if version == VERSIONS[1] else found


def listed(schemas: Sequence[Any], version: str, names: Sequence[str] = ("one", "two")) -> list[list[JsonObject]]:
    """Lists of tools that take and answer by these schemas, of servers with these names, as the gateway has them."""
    servers: dict[str, list[JsonObject]] = {name: [] for name in names}
    for index, schema in enumerate(schemas):
        tool = {"name": f"t{index}", "inputSchema": schema, "outputSchema": schema}
        for tools in servers.values():
            tools.append(tool)
    catalog = build_catalog([UpstreamListing(name, tuple(of_one)) for name, of_one in servers.items()])
    tools = [tool_for_version(tool.definition, version) for tool in catalog.tools]
    return [tools[at : at + TOGETHER] for at in range(0, len(tools), TOGETHER)]


def raw(schemas: Sequence[JsonObject]) -> list[list[JsonObject]]:
    return [[{"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}] for schema in schemas]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_schema_compiles_that_a_fault_was_put_into(installation: Installation, version: str) -> None:
    schemas = [faulty_schema(Random(seed)) for seed in range(200)]
    assert len(faults(installation, raw(schemas[:50]))) > 20, "these schemas are no trouble for Ajv"
    assert faults_at(version, installation, listed(schemas, version)) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_faulty_keyword_compiles_at_the_root_in_a_property_and_in_a_definition(
    installation: Installation, version: str
) -> None:
    schemas: list[JsonObject] = []
    for key, value in VALUES:
        schemas.append({"type": "object", key: value})
        schemas.append({"type": "object", "properties": {"a": {"type": "string", key: value}}})
        schemas.append({"type": "object", "properties": {"a": {"$ref": "#/$defs/X"}}, "$defs": {"X": {key: value}}})
    assert faults_at(version, installation, listed(schemas, version)) == []


def definitions(folder: Path) -> Iterator[Any]:
    for path in sorted([*folder.glob("train/*.jsonl"), *folder.glob("dev/**/*.jsonl")]):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if isinstance(row, dict):
                yield from (row[key] for key in ("input_schema", "output_schema") if isinstance(row.get(key), dict))


@pytest.fixture(scope="module")
def labelled() -> list[Any]:
    """The distinct definitions of the labelled data."""
    folder = os.environ.get("PML_DATA")
    if folder is None:
        pytest.skip("PML_DATA names no folder of labelled data")
    return list({json.dumps(each, sort_keys=True): each for each in definitions(Path(folder))}.values())


@pytest.mark.parametrize("part", range(PARTS))
def test_every_definition_of_the_labelled_data_compiles(
    installation: Installation, labelled: list[Any], part: int
) -> None:
    assert faults(installation, listed(labelled[part::PARTS], VERSIONS[0], ("one",))) == []
