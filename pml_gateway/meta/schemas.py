"""A tool's specification as JSON, TypeScript or Markdown."""

from __future__ import annotations

import json

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import ErrorCode
from pml_gateway.exposure.schema_text import required_names, signature, typescript_type
from pml_gateway.results.learning import LearnedShape
from pml_gateway.text import counted
from pml_gateway.types import JsonObject

_CALL_ERRORS = (
    ErrorCode.INVALID_INPUT,
    ErrorCode.TIMEOUT,
    ErrorCode.UPSTREAM_UNAVAILABLE,
    ErrorCode.UPSTREAM_AUTH,
    ErrorCode.UPSTREAM_ERROR,
    ErrorCode.BUSY,
)


def render_json(tool: CatalogTool, learned: LearnedShape | None = None) -> JsonObject:
    """The whole specification; what was inferred from results stands apart from what the server declares."""
    kept = ("title", "description", "inputSchema", "outputSchema", "annotations")
    specification: JsonObject = {key: tool.definition[key] for key in kept if key in tool.definition}
    if learned is not None:
        specification["inferred"] = {"outputSchema": learned.schema, "observed_results": learned.observed}
    return {
        "name": tool.qualified_name,
        "server": tool.upstream_id,
        **specification,
        "errors": [code.value for code in _CALL_ERRORS],
    }


def render_typescript(tool: CatalogTool, learned: LearnedShape | None = None) -> JsonObject:
    """The tool as a TypeScript declaration with its documentation."""
    identifier = tool.qualified_name.replace("-", "_")
    result = typescript_type(tool.definition["outputSchema"]) if "outputSchema" in tool.definition else "unknown"
    if learned is not None:
        result = f"/* inferred from {counted(learned.observed, 'result')} */ {typescript_type(learned.schema)}"
    arguments = typescript_type(tool.definition["inputSchema"])
    lines = tool.description.replace("*/", "* /").splitlines() or [""]
    comment = "\n".join(["/**", *(f" * {line}".rstrip() for line in lines), " */"])
    code = f"{comment}\ndeclare function {identifier}(args: {arguments}): Promise<{result}>;"
    return {"name": tool.qualified_name, "server": tool.upstream_id, "typescript": code}


def render_markdown(tool: CatalogTool, learned: LearnedShape | None = None) -> JsonObject:
    """The tool as a short Markdown page."""
    schema = tool.definition["inputSchema"]
    properties = schema.get("properties") if isinstance(schema.get("properties"), dict) else {}
    required = required_names(schema)
    lines = [f"## {tool.qualified_name}", "", tool.description or tool.title, "", f"Server: {tool.upstream_id}", ""]
    lines += [f"`{signature(tool.qualified_name, schema)}`", ""]
    for name, parameter in properties.items():
        details = parameter if isinstance(parameter, dict) else {}
        needed = "required" if name in required else "optional"
        text = str(details.get("description") or details.get("title") or "").strip()
        default = f" Default: `{json.dumps(details['default'], ensure_ascii=False)}`." if "default" in details else ""
        lines.append(f"- `{name}` ({typescript_type(details, 1)}, {needed}): {text}{default}".rstrip(": "))
    if "outputSchema" in tool.definition:
        lines += ["", f"Returns: `{typescript_type(tool.definition['outputSchema'], 1)}`"]
    if learned is not None:
        lines += [
            "",
            f"Returns (inferred from {counted(learned.observed, 'result')}): `{typescript_type(learned.schema, 1)}`",
        ]
    return {"name": tool.qualified_name, "server": tool.upstream_id, "markdown": "\n".join(lines).strip()}
