"""Calls of a namespace: the action that its arguments name, and the arguments for that action's tool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.catalog.pointers import escaped, unescaped
from pml_gateway.errors import InvalidInputError
from pml_gateway.exposure.grouping import Namespace, loosely
from pml_gateway.exposure.namespaces import ACTION, call_signature, shown_name
from pml_gateway.exposure.shallow_check import json_type, missing_names, wrong_types
from pml_gateway.exposure.vocabulary import ARGUMENT_WORDS, is_of_client, object_in
from pml_gateway.text import MAX_COMPARED, did_you_mean, nearest
from pml_gateway.types import JsonObject

MAX_NAMED = 40
ACTION_LIKENESS = 0.5
"""Minimum similarity of suggestions: actions are few and short, and a typo weighs more in them than in a long name."""


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
