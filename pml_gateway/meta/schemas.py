"""A tool's specification as JSON, TypeScript or Markdown."""

from __future__ import annotations

import json
from typing import Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import ErrorCode
from pml_gateway.exposure.signature import signature
from pml_gateway.results.learning import LearnedShape
from pml_gateway.text import counted
from pml_gateway.types import JsonObject

MAX_DEPTH = 6
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
    result = _typescript(tool.definition["outputSchema"], 0) if "outputSchema" in tool.definition else "unknown"
    if learned is not None:
        result = f"/* inferred from {counted(learned.observed, 'result')} */ {_typescript(learned.schema, 0)}"
    arguments = _typescript(tool.definition["inputSchema"], 0)
    lines = tool.description.replace("*/", "* /").splitlines() or [""]
    comment = "\n".join(["/**", *(f" * {line}".rstrip() for line in lines), " */"])
    code = f"{comment}\ndeclare function {identifier}(args: {arguments}): Promise<{result}>;"
    return {"name": tool.qualified_name, "server": tool.upstream_id, "typescript": code}


def render_markdown(tool: CatalogTool, learned: LearnedShape | None = None) -> JsonObject:
    """The tool as a short Markdown page."""
    schema = tool.definition["inputSchema"]
    properties = schema.get("properties") if isinstance(schema.get("properties"), dict) else {}
    required = schema.get("required") if isinstance(schema.get("required"), list) else []
    lines = [f"## {tool.qualified_name}", "", tool.description or tool.title, "", f"Server: {tool.upstream_id}", ""]
    lines += [f"`{signature(tool.qualified_name, schema)}`", ""]
    for name, parameter in properties.items():
        details = parameter if isinstance(parameter, dict) else {}
        needed = "required" if name in required else "optional"
        text = str(details.get("description") or details.get("title") or "").strip()
        default = f" Default: `{json.dumps(details['default'], ensure_ascii=False)}`." if "default" in details else ""
        lines.append(f"- `{name}` ({_typescript(details, 1)}, {needed}): {text}{default}".rstrip(": "))
    if "outputSchema" in tool.definition:
        lines += ["", f"Returns: `{_typescript(tool.definition['outputSchema'], 1)}`"]
    if learned is not None:
        lines += [
            "",
            f"Returns (inferred from {counted(learned.observed, 'result')}): `{_typescript(learned.schema, 1)}`",
        ]
    return {"name": tool.qualified_name, "server": tool.upstream_id, "markdown": "\n".join(lines).strip()}


def _typescript(schema: Any, depth: int) -> str:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return "unknown"
    if isinstance(schema.get("enum"), list):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"]) or "never"
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            return " | ".join(dict.fromkeys(_typescript(branch, depth + 1) for branch in schema[keyword]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_typescript({**schema, "type": one}, depth + 1) for one in kind)
    match kind:
        case "string" | "boolean" | "null":
            return str(kind)
        case "integer" | "number":
            return "number"
        case "array":
            item = _typescript(schema.get("items", {}), depth + 1)
            return f"({item})[]" if " " in item and not item.startswith("{") else f"{item}[]"
        case "object":
            return _typescript_object(schema, depth)
        case _:
            return _typescript_object(schema, depth) if "properties" in schema else "unknown"


def _typescript_object(schema: JsonObject, depth: int) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        others = schema.get("additionalProperties")
        return f"Record<string, {_typescript(others, depth + 1) if isinstance(others, dict) else 'unknown'}>"
    required = schema["required"] if isinstance(schema.get("required"), list) else []
    indent = "  " * (depth + 1)
    fields = []
    for name, parameter in properties.items():
        description = parameter.get("description") if isinstance(parameter, dict) else None
        note = f"{indent}/** {' '.join(str(description).replace('*/', '* /').split())} */\n" if description else ""
        key = name if name.isidentifier() else json.dumps(name, ensure_ascii=False)
        fields.append(f"{note}{indent}{key}{'' if name in required else '?'}: {_typescript(parameter, depth + 1)};")
    return "{\n" + "\n".join(fields) + "\n" + "  " * depth + "}"
