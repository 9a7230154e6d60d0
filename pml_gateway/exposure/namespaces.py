"""Namespaces as tools: a definition with an action per upstream tool, and calls of an action with its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.pointers import escaped, unescaped
from pml_gateway.catalog.wire import encode
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.compact import Compactor, share_repeated
from pml_gateway.exposure.grouping import Namespace, loosely
from pml_gateway.exposure.schema_text import UNION, field, inline_type, required_names
from pml_gateway.exposure.shallow_check import json_type, missing_names, wrong_types
from pml_gateway.exposure.vocabulary import ARGUMENT_WORDS, is_of_client, object_in
from pml_gateway.text import MAX_COMPARED, did_you_mean, first_sentence, nearest
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


MAX_NAMED = 40

ACTION_LIKENESS = 0.5
"""Minimum similarity of suggestions: actions are few and short, and a typo weighs more in them than in a long name."""


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


@dataclass(frozen=True, slots=True)
class ActionCall:
    """A call in the form that its tool expects.

    `places` has the position of each argument in the original request, as a JSON pointer; `ignored` are keys that
    clients add.
    """

    action: str
    tool: CatalogTool
    arguments: JsonObject
    places: dict[str, str]
    ignored: tuple[str, ...] = ()

    def place(self, pointer: str) -> str:
        """Translate a pointer into the tool's arguments to one into the original request."""
        head, _, rest = pointer.removeprefix("/").partition("/")
        placed = self.places.get(unescaped(head))
        return pointer if placed is None or not pointer else f"{placed}/{rest}" if rest else placed


def choose(namespace: Namespace, given: JsonObject, others: Iterable[Namespace] = ()) -> str:
    """Return the action that a call names.

    Raises:
        InvalidInputError: with the closest actions, or the namespaces among `others` that have it; all of them are
            visible to this client.
    """
    value = given.get(ACTION)
    action = namespace.find(value) if isinstance(value, str) else None
    if action is not None:
        return action
    known = list(namespace.actions)
    closest: list[str] = []
    found = ""
    details: JsonObject = {}
    if value is None:
        message = "missing"
    elif not isinstance(value, str):
        message = f"{json_type(value)} instead of a string"
    else:
        message = f"{namespace.name} has no action {value[:MAX_COMPARED]!r}"
        elsewhere = [(each, its) for each in others if each is not namespace and (its := each.find(value)) is not None]
        if elsewhere:
            found = f"it is an action of another tool: {' or '.join(call_signature(*each) for each in elsewhere)}"
            details = {"namespaces": [each.name for each, _ in elsewhere]}
        closest = nearest(value, known, count=3, likeness=ACTION_LIKENESS)
    more = f" and {len(known) - MAX_NAMED} more" if len(known) > MAX_NAMED else ""
    meant = found or did_you_mean(call_signature(namespace, one) for one in closest)
    errors = [{"path": f"/{ACTION}", "message": message}]
    raise InvalidInputError(
        f"/{ACTION}: {message}",
        hint=meant or f"actions: {', '.join(known[:MAX_NAMED])}{more}",
        details={"errors": errors, "closest": [] if found else closest, **details},
    )


def adapt(namespace: Namespace, action: str, given: JsonObject) -> ActionCall:
    """Return the call in the form that the action's tool expects.

    An unknown field stays as it is: the check of the arguments reads it, or refuses it.

    Raises:
        InvalidInputError: the same field is given twice, next to the action and in an envelope.
    """
    tool = namespace.actions[action]
    schema = tool.definition["inputSchema"]
    properties = schema.get("properties")
    known: JsonObject = properties if isinstance(properties, dict) else {}
    renamed = {shown_name(name, known): name for name in known}
    arguments: JsonObject = {}
    places: dict[str, str] = {}
    pending: list[tuple[str, str, Any]] = []
    ignored: list[str] = []
    takes_any = bool(schema.get("additionalProperties")) or "patternProperties" in schema
    for name, place, value in _fields(given, known, takes_any):
        # Fields in an envelope are the tool's own, which may have a parameter called `action`.
        target = renamed.get(name, name) if place.count("/") == 1 else name
        if target not in known:
            pending.append((name, place, value))
            continue
        _put(namespace, action, target, place, value, arguments, places)
    for name, place, value in pending:
        if known and not takes_any and is_of_client(name, value):
            ignored.append(place)
        else:
            _put(namespace, action, name, place, value, arguments, places)
    return ActionCall(action, tool, arguments, places, tuple(ignored))


def type_problems(call: ActionCall, arguments: JsonObject, names: Mapping[str, str]) -> list[JsonObject]:
    """Return the problems that the shallow check finds: missing required fields, and values of the wrong type.

    `names` has the pointer of each argument that was sent under another name.
    """
    schema = call.tool.definition["inputSchema"]
    properties = schema.get("properties")
    known: JsonObject = properties if isinstance(properties, dict) else {}
    problems = [
        {"path": f"/{escaped(shown_name(name, known))}", "message": "missing; it is required"}
        for name in missing_names(schema, arguments)
    ]
    wrong = wrong_types(schema, arguments)
    sent = {name: call.place(names.get(name, f"/{escaped(name)}")) for name in wrong}
    return problems + [{"path": sent[name], "message": message} for name, message in wrong.items()]


def _fields(given: JsonObject, known: JsonObject, takes_any: bool) -> Iterator[tuple[str, str, Any]]:
    """Yield (name, pointer, value) of every field other than the action, including those in an envelope."""
    for name, value in given.items():
        if name == ACTION:
            continue
        inside = object_in(value) if loosely(name) in ARGUMENT_WORDS and name not in known and not takes_any else None
        if inside is not None:
            for inner, item in inside.items():
                yield inner, f"/{name}/{escaped(inner)}", item
        else:
            yield name, f"/{escaped(name)}", value


def _put(
    namespace: Namespace,
    action: str,
    name: str,
    place: str,
    value: Any,
    arguments: JsonObject,
    places: dict[str, str],
) -> None:
    if name in arguments:
        message = f"given twice, also as {places[name]}"
        raise InvalidInputError(
            f"invalid arguments for {namespace.name} {action}: {place}: {message}",
            hint=f"expected {call_signature(namespace, action)}",
            details={"errors": [{"path": place, "message": message}]},
        )
    arguments[name] = value
    places[name] = place
