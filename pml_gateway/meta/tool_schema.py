"""`tool_schema`: full specifications of tools as JSON, TypeScript or Markdown, each with one example of arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from pml_gateway.activity.arguments import kept_arguments
from pml_gateway.catalog.model import EXAMPLES, CatalogTool
from pml_gateway.errors import ErrorCode, GatewayError, InvalidInputError
from pml_gateway.exposure.instructions import Systems
from pml_gateway.exposure.meta_tool import MetaTool
from pml_gateway.exposure.schema_text import outcome, plain_name, required_names, signature, typescript_type
from pml_gateway.exposure.validation import fitted
from pml_gateway.gateway.call import CallContext
from pml_gateway.json_text.pieces import exceeds
from pml_gateway.meta.arguments import choice, strings
from pml_gateway.results.content import data_result
from pml_gateway.results.learning import Output
from pml_gateway.secrets.judgement import MASK
from pml_gateway.text import counted, escaped_json
from pml_gateway.types import Effect, JsonObject

MAX_NAMES = 50
MAX_EXAMPLE = 1000
"""Maximum JSON characters of an example, some 300 tokens; optional arguments are left out to stay below."""

MAX_TRIED = 4
"""Maximum number of examples of one tool that are checked."""

_WRAPPERS = ("arguments", "input", "value")
"""Keys under which an example has its arguments, next to a name or a description."""

_CALL_ERRORS = (
    ErrorCode.INVALID_INPUT,
    ErrorCode.TIMEOUT,
    ErrorCode.UPSTREAM_UNAVAILABLE,
    ErrorCode.UPSTREAM_AUTH,
    ErrorCode.UPSTREAM_ERROR,
    ErrorCode.BUSY,
)


def definition(_: Systems) -> JsonObject:
    """Return the tool definition."""
    return {
        "name": "tool_schema",
        "description": "Full description and schemas of tools, when a signature is not enough.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "names": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                "format": {"enum": ["json", "typescript", "markdown"], "default": "json"},
            },
            "required": ["names"],
        },
        "annotations": Effect.READ.hints | {"openWorldHint": False},
    }


async def tool_schema(context: CallContext, arguments: JsonObject) -> JsonObject:
    """Return the full specification of each named tool, with an error in place of each unknown one."""
    names = strings(arguments, "names", '["<tool>"]')
    if len(names) > MAX_NAMES:
        raise InvalidInputError(f"names: {len(names)} names; at most {MAX_NAMES} in one call")
    chosen = choice(arguments, "format", ("json", "typescript", "markdown"))
    render = {"json": render_json, "typescript": render_typescript, "markdown": render_markdown}[chosen]
    tools, unknown = [], []
    for name in dict.fromkeys(names):
        try:
            tools.append(context.find(name))
        except GatewayError as error:
            unknown.append(error)
    client, specifications = context.scope.client, []
    recorded = await context.gateway.recorded_arguments(client, tools)
    for tool in tools:
        example = await example_of(tool, recorded.get(tool, ()))
        specifications.append(render(tool, context.gateway.shapes.output_of(client, tool), example))
    if unknown and not specifications:
        raise unknown[0]
    errors = [error.as_json(without=("retryable", "details")) for error in unknown]
    return data_result({"tools": specifications, **({"errors": errors} if errors else {})})


async def example_of(tool: CatalogTool, recorded: Iterable[JsonObject]) -> JsonObject | None:
    """Return arguments that the tool's schema admits, without secrets; None if no example is known.

    Args:
        tool: the tool; examples of its definition are preferred.
        recorded: arguments of calls that the client itself made, newest first.
    """
    for candidate in islice(filter(None, map(_shown, _all_of(tool, recorded))), MAX_TRIED):
        example = _in_size(candidate, required_names(tool.definition["inputSchema"]))
        if example is not None and await _is_valid(tool, example):
            return example
    return None


async def _is_valid(tool: CatalogTool, example: JsonObject) -> bool:
    try:
        fitting, problems = await fitted(tool, example)
    except GatewayError:
        return False
    return not problems and not fitting.coerced


def _all_of(tool: CatalogTool, recorded: Iterable[JsonObject]) -> Iterator[JsonObject]:
    schema = tool.definition["inputSchema"]
    properties = schema.get("properties")
    known: JsonObject = properties if isinstance(properties, dict) else {}
    for given in (*(tool.listed.get(key) for key in EXAMPLES), schema.get("examples")):
        for item in _items(given):
            if isinstance(item, dict):
                yield _unwrapped(item, known)
    if (composed := _of_parameters(known, required_names(schema))) is not None:
        yield composed
    yield from recorded


def _items(given: object) -> Iterator[Any]:
    """Yield the examples of a list, or of an object of named ones."""
    values: Sequence[Any] = given if isinstance(given, list) else [*given.values()] if isinstance(given, dict) else ()
    yield from values[:MAX_TRIED]


def _unwrapped(item: JsonObject, known: JsonObject) -> JsonObject:
    for key in _WRAPPERS:
        if key not in known and isinstance(item.get(key), dict):
            inner: JsonObject = item[key]
            return inner
    return item


def _of_parameters(properties: JsonObject, required: frozenset[str]) -> JsonObject | None:
    """Return arguments made of the parameters' own examples; None if a required one, or every one, has none."""
    found: JsonObject = {}
    has_example = False
    for name, schema in properties.items():
        values = schema.get("examples") if isinstance(schema, dict) else None
        if isinstance(values, list) and values:
            found[name], has_example = values[0], True
        elif name in required and isinstance(schema, dict):
            choices = [schema[key] for key in ("const", "default") if key in schema]
            choices += schema["enum"][:1] if isinstance(schema.get("enum"), list) else []
            if choices:
                found[name] = choices[0]
    return found if has_example and found.keys() >= required else None


def _shown(arguments: JsonObject) -> JsonObject | None:
    """Return arguments with secrets masked; None if they are too large, or have characters that nobody sees."""
    if not arguments or exceeds(arguments, 2 * MAX_EXAMPLE):
        return None
    try:
        kept, masked = kept_arguments(arguments, "masked")
    except RecursionError:
        return None
    is_seen = escaped_json(masked) == json.dumps(masked, ensure_ascii=False)
    return masked if kept == "masked" and is_seen else None


def _in_size(arguments: JsonObject, required: frozenset[str]) -> JsonObject | None:
    """Return the required arguments, and of the others those without secrets that fit into `MAX_EXAMPLE`."""
    kept = {name: value for name, value in arguments.items() if name in required}
    for name, value in arguments.items():
        longer = {**kept, name: value}
        if name not in kept and MASK not in json.dumps(value) and not exceeds(longer, MAX_EXAMPLE):
            kept = longer
    return kept if kept and not exceeds(kept, MAX_EXAMPLE) else None


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


TOOL_SCHEMA = MetaTool("tool_schema", definition, tool_schema, aliases=("schema",))
