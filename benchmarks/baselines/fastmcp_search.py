"""What the search transforms of FastMCP read of a tool, and answer with."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence

from fastmcp.server.transforms.search.base import serialize_tools_for_output_json
from fastmcp.tools.base import Tool

from benchmarks.labelled_sets import LabelledSet
from pml_gateway.index.evaluation import input_schema
from pml_gateway.types import JsonObject

MAX_RESULTS = 10


def fastmcp_tools(labelled: LabelledSet) -> list[Tool]:
    """The tools under their bare names, as their servers list them."""
    # some sets name their tools by HTTP paths; one warning for each says nothing about the ranking
    logging.getLogger("mcp.shared.tool_name_validation").setLevel(logging.ERROR)
    return [_tool(row) for row in labelled.rows.values()]


def answer_text(keys: Sequence[str], tools: Sequence[Tool]) -> Callable[[str], str]:
    """The full definition that an answer holds of each hit."""
    by_key: Mapping[str, Tool] = dict(zip(keys, tools, strict=True))

    def text(key: str) -> str:
        return json.dumps(serialize_tools_for_output_json([by_key[key]])[0], ensure_ascii=False, separators=(",", ":"))

    return text


def _tool(row: JsonObject) -> Tool:
    schema = input_schema(row)
    properties = schema.get("properties")
    parameters = schema if isinstance(properties, dict) else {**schema, "properties": {}}
    return Tool(name=row["name"], description=row.get("description"), parameters=parameters)
