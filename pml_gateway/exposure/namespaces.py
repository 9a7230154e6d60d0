"""Definitions of namespaces: one tool with an action per upstream tool, a line each, and shared parameters once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.wire import encode
from pml_gateway.exposure.compact import Compactor, share_repeated
from pml_gateway.exposure.grouping import Namespace
from pml_gateway.exposure.schema_text import UNION, field, inline_type, required_names
from pml_gateway.text import first_sentence
from pml_gateway.types import Effect, JsonObject

LINE_SHARE = 0.12
"""Maximum length of an action's line with its purpose, as a share of its tool definition's JSON.

A line has more tokens per character than JSON, so this keeps a namespace below a fifth of its tools.
"""

MIN_PURPOSE, MIN_CUT, MAX_PURPOSE = 12, 40, 120
"""Characters of the shortest useful purpose, of the shortest one that is cut within a clause, and of the longest."""

MIN_NEW_WORDS = 2
"""Minimum number of words that a purpose adds to the action's name and parameters; else it is left out."""

_CLAUSE_END = re.compile(r"[,;:(]| which | that | such as | by | to | with | using | when | if ")

MAX_HOISTED_TEXT = 80
MAX_PARAMETERS = 24
ACTION = "action"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of one action: its name in the namespace, and its original name and schema."""

    name: str
    shown: str
    schema: Any
    required: bool


def parameters(tool: CatalogTool) -> list[Parameter]:
    """Return a tool's parameters, required ones first; one called `action` gets another name."""
    schema = tool.definition["inputSchema"]
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    required = required_names(schema)
    ordered = sorted(properties, key=lambda name: name not in required)
    return [Parameter(name, shown_name(name, properties), properties[name], name in required) for name in ordered]


def shown_name(name: str, properties: JsonObject) -> str:
    """Return the name of a parameter in the namespace: its own, unless that is the key for the action."""
    shown = name
    while shown == ACTION or (shown != name and shown in properties):
        shown += "_"
    return shown


def definition(namespace: Namespace) -> JsonObject:
    """Return the tool definition of a namespace; equal tools give equal bytes."""
    compactor = Compactor()
    by_action = {action: parameters(tool) for action, tool in namespace.actions.items()}
    hoisted = _hoisted(namespace, by_action, compactor)
    lines = []
    own_by_action: dict[str, list[Parameter]] = {}
    for action, tool in namespace.actions.items():
        own = [parameter for parameter in by_action[action] if parameter.shown not in hoisted]
        lines.append(_line(action, tool, own))
        own_by_action[action] = own
    declared = _declared(namespace, own_by_action, compactor)
    merged = {name: schemas[0] if len(schemas) == 1 else {"anyOf": schemas} for name, schemas in declared.items()}
    properties = share_repeated({**hoisted, **merged}, compactor)
    required = [name for name in hoisted if all(_requires(each, name) for each in by_action.values())]
    schema: JsonObject = {
        "type": "object",
        "properties": {ACTION: {"type": "string"}, **properties},
        "required": [ACTION, *required],
        # Set explicitly: clients that turn schemas into types would otherwise drop the fields named in the lines.
        "additionalProperties": True,
    }
    if compactor.definitions:
        schema["$defs"] = dict(sorted(compactor.definitions.items()))
    head = "Actions and their fields (str unless typed or declared):"
    defined: JsonObject = {
        "name": namespace.name,
        "description": "\n".join([head, *lines]),
        "inputSchema": schema,
    }
    if all(tool.effect is Effect.READ for tool in namespace.actions.values()):
        defined["annotations"] = Effect.READ.hints
    return defined


def call_signature(namespace: Namespace, action: str) -> str:
    """Return the signature of one action with every parameter: `files(action: "read", path, limit?: int)`."""
    tool = namespace.actions[action]
    return action_call(namespace, action, _limited([_field(parameter, tool) for parameter in parameters(tool)]))


def action_call(namespace: Namespace, action: str, fields: Sequence[str]) -> str:
    """Return the call of one action with these fields as text."""
    return f"{namespace.name}({', '.join([f'{ACTION}: {encode(action).decode()}', *fields])})"


def _hoisted(namespace: Namespace, by_action: dict[str, list[Parameter]], compactor: Compactor) -> JsonObject:
    """Return short schemas of the parameters that all actions share, in the order of the first action."""
    first, *others = by_action
    hoisted: JsonObject = {}
    for parameter in by_action[first]:
        same = [next((one for one in by_action[other] if one.shown == parameter.shown), None) for other in others]
        if parameter.shown != parameter.name or any(one is None or one.required != parameter.required for one in same):
            continue
        schemas = [
            compactor.compact(one.schema, tool.definition["inputSchema"])
            for one, tool in zip([parameter, *same], namespace.actions.values(), strict=True)
            if one is not None
        ]
        if any(schema != schemas[0] for schema in schemas):
            continue
        hoisted[parameter.name] = _described(schemas[0], parameter, same)
    return hoisted


def _described(schema: Any, parameter: Parameter, same: list[Parameter | None]) -> Any:
    """Return a shared schema, with the description if all actions have the same one."""
    text = parameter.schema.get("description") if isinstance(parameter.schema, dict) else None
    agreed = all(one is not None and one.schema == parameter.schema for one in same)
    if not isinstance(text, str) or not agreed or not isinstance(schema, dict) or "$ref" in schema:
        return schema
    return {**schema, "description": first_sentence(text, MAX_HOISTED_TEXT)}


def _line(action: str, tool: CatalogTool, own: list[Parameter]) -> str:
    fields = [_field(parameter, tool) for parameter in own]
    line = f"{action}({', '.join(_limited(fields))})"
    left = min(int(LINE_SHARE * len(encode(tool.definition))) - len(line), MAX_PURPOSE)
    said = purpose(tool.description or tool.title, left, known=f"{action} {' '.join(one.name for one in own)}")
    return f"{line} {said}" if said else line


def purpose(description: str, limit: int, *, known: str) -> str:
    """Return the purpose of a tool in at most `limit` characters: its first sentence, or the clauses that fit.

    Empty if too little fits, or if it would only repeat words of the name and the parameters in `known`.
    """
    sentence = first_sentence(description, 4 * MAX_PURPOSE).rstrip(".")
    clauses = [sentence[: match.start()] for match in _CLAUSE_END.finditer(sentence)]
    fitting = [clause for clause in [*clauses, sentence] if MIN_PURPOSE <= len(clause) <= limit]
    said = fitting[-1] if fitting else first_sentence(sentence, limit) if limit >= MIN_CUT else ""
    return said if len(_stems(said) - _stems(known)) >= MIN_NEW_WORDS else ""


def _stems(text: str) -> set[str]:
    """Return the prefixes of the longer words of a text, so that `files` and `file` are equal."""
    return {word[:4] for word in re.findall(r"[a-z]{4,}", text.lower().replace("_", " "))}


def _field(parameter: Parameter, tool: CatalogTool) -> str:
    text = inline_type(parameter.schema, tool.definition["inputSchema"])
    if text is not None and not parameter.required:
        # Leaving out an optional field means the same as null.
        text = text.removesuffix(f"{UNION}null")
    return field(parameter.shown, text, required=parameter.required)


def _limited(fields: list[str]) -> list[str]:
    """Return at most `MAX_PARAMETERS` fields, but every required one."""
    needed = sum(1 for one in fields if not one.partition(":")[0].endswith("?"))
    kept = max(needed, MAX_PARAMETERS)
    return fields if len(fields) <= kept else [*fields[:kept], f"… {len(fields) - kept} more"]


def _declared(
    namespace: Namespace, own_by_action: dict[str, list[Parameter]], compactor: Compactor
) -> dict[str, list[Any]]:
    """Return schemas of the parameters that do not fit in some action's line, with the variants of other actions."""
    own = [
        (parameter, namespace.actions[action].definition["inputSchema"])
        for action, parameters_ in own_by_action.items()
        for parameter in parameters_
    ]
    declared: dict[str, list[Any]] = {
        parameter.shown: [] for parameter, root in own if inline_type(parameter.schema, root) is None
    }
    for parameter, root in own:
        if (known := declared.get(parameter.shown)) is None:
            continue
        schema = compactor.compact(parameter.schema, root)
        if schema not in known:
            known.append(schema)
    return declared


def _requires(known: list[Parameter], shown: str) -> bool:
    return any(parameter.shown == shown and parameter.required for parameter in known)
