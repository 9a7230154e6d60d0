"""A tool's specification as JSON, TypeScript or Markdown."""

from __future__ import annotations

import json

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.errors import ErrorCode
from pml_gateway.exposure.schema_text import outcome, plain_name, required_names, signature, typescript_type
from pml_gateway.results.learning import Output
from pml_gateway.text import counted, escaped_json
from pml_gateway.types import JsonObject

_CALL_ERRORS = (
    ErrorCode.INVALID_INPUT,
    ErrorCode.TIMEOUT,
    ErrorCode.UPSTREAM_UNAVAILABLE,
    ErrorCode.UPSTREAM_AUTH,
    ErrorCode.UPSTREAM_ERROR,
    ErrorCode.BUSY,
)


def render_json(tool: CatalogTool, output: Output | None = None, example: JsonObject | None = None) -> JsonObject:
    """Return the whole specification; an inferred output schema is separate from a declared one."""
    kept = ("title", "description", "inputSchema", "outputSchema", "annotations")
    specification: JsonObject = {key: tool.definition[key] for key in kept if key in tool.definition}
    if output is not None and output.observed is not None:
        specification["inferred"] = {"outputSchema": output.schema, "observed_results": output.observed}
    return {
        "name": tool.qualified_name,
        "server": tool.upstream_id,
        **specification,
        **({} if example is None else {"example": example}),
        "errors": [code.value for code in _CALL_ERRORS],
    }


def render_typescript(tool: CatalogTool, output: Output | None = None, example: JsonObject | None = None) -> JsonObject:
    """Return the tool as a TypeScript declaration with its documentation."""
    identifier = tool.qualified_name.replace("-", "_")
    result = "unknown" if output is None else typescript_type(output.schema)
    if output is not None and output.observed is not None:
        result = f"/* inferred from {counted(output.observed, 'result')} */ {result}"
    arguments = typescript_type(tool.definition["inputSchema"])
    lines = tool.description.replace("*/", "* /").splitlines() or [""]
    if example is not None:
        # Only strings of JSON can have this pair, and a slash in them may be escaped.
        lines.append("@example " + escaped_json(example).replace("*/", "*\\/"))
    comment = "\n".join(["/**", *(f" * {line}".rstrip() for line in lines), " */"])
    code = f"{comment}\ndeclare function {identifier}(args: {arguments}): Promise<{result}>;"
    return {"name": tool.qualified_name, "server": tool.upstream_id, "typescript": code}


def render_markdown(tool: CatalogTool, output: Output | None = None, example: JsonObject | None = None) -> JsonObject:
    """Return the tool as a short Markdown page."""
    schema = tool.definition["inputSchema"]
    properties = schema.get("properties") if isinstance(schema.get("properties"), dict) else {}
    required = required_names(schema)
    lines = [f"## {tool.qualified_name}", "", tool.description or tool.title, "", f"Server: {tool.upstream_id}", ""]
    returned = None if output is None else output.schema
    ends = outcome(tool.effect, returned, is_learned=output is not None and output.observed is not None)
    lines += [f"`{signature(tool.qualified_name, schema)}{ends}`", ""]
    for name, parameter in properties.items():
        details = parameter if isinstance(parameter, dict) else {}
        needed = "required" if name in required else "optional"
        text = str(details.get("description") or details.get("title") or "").strip()
        default = f" Default: `{json.dumps(details['default'], ensure_ascii=False)}`." if "default" in details else ""
        lines.append(
            f"- `{plain_name(name)}` ({typescript_type(details, 1, schema)}, {needed}): {text}{default}".rstrip(": ")
        )
    if example is not None:
        lines += ["", "Example of arguments:", "", f"    {escaped_json(example)}"]
    if output is not None:
        source = "" if output.observed is None else f" (inferred from {counted(output.observed, 'result')})"
        lines += ["", f"Returns{source}: `{typescript_type(output.schema, 1, output.schema)}`"]
    return {"name": tool.qualified_name, "server": tool.upstream_id, "markdown": "\n".join(lines).strip()}
