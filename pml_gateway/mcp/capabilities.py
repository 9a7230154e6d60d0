"""Capabilities as data: what clients and servers declare in both protocol eras, and what the gateway announces."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from pml_gateway.types import JsonObject

if TYPE_CHECKING:
    import mcp_types

ASKABLE = ("roots", "sampling", "elicitation")
"""The capabilities of clients through which servers can ask them."""

EXTENSIONS = "extensions"
EXTENDED = (EXTENSIONS, "experimental")
"""The capabilities beyond the protocol, each a map from identifiers to settings."""

ANNOUNCED_TO_CLIENTS: Mapping[str, tuple[str, ...]] = {"prompts": (), "resources": ("subscribe",), "completions": ()}
"""The capabilities beside tools that clients are told of if a server has them, each with its optional parts."""

TASKS = "io.modelcontextprotocol/tasks"
"""The extension of servers that run calls as tasks. The gateway handles it for all clients, and declares it."""

MAX_IDENTIFIERS = 32
"""Maximum number of extensions of one peer; further ones are not passed on."""

MAX_SETTINGS = 2048
"""Maximum characters of the settings of one extension as JSON: they are kept with sessions and repeated in requests."""

MAX_DEPTH = 8
"""Maximum depth at which the settings of an extension are combined."""

MAX_COMBINED = 100
"""Maximum number of values in a list of settings that is combined with another."""

REQUIRED_BY = {"roots/list": "roots", "sampling/createMessage": "sampling", "elicitation/create": "elicitation"}
"""The client capability that each question of a server requires."""

_OLDEST: Mapping[str, JsonObject] = {"elicitation": {"form": {}}}
"""Meaning of a capability without parts: clients that name no mode predate the modes, and show forms."""


def extended_part(declared: JsonObject) -> JsonObject:
    """Return the extensions and experimental capabilities that were declared."""
    return {name: given for name in EXTENDED if isinstance(given := declared.get(name), dict) and given}


def without_extensions(declared: JsonObject, denied: Collection[str]) -> JsonObject:
    """Return capabilities without some extensions or experimental capabilities.

    Tasks were part of the protocol in 2025-11-25, and are an extension since.
    """
    if not denied:
        return declared
    kept = {name: given for name, given in declared.items() if name != "tasks" or TASKS not in denied}
    for name in EXTENDED:
        if isinstance(given := declared.get(name), dict):
            kept[name] = {identifier: settings for identifier, settings in given.items() if identifier not in denied}
            if not kept[name]:
                del kept[name]
    return kept


def bounded(declared: JsonObject) -> JsonObject:
    """Return declared capabilities without extensions that are too large to pass on."""
    kept = {name: given for name, given in declared.items() if name not in EXTENDED}
    for name, given in extended_part(declared).items():
        fitting = [(identifier, each) for identifier, each in given.items() if _fits(identifier, each)]
        if fitting:
            kept[name] = dict(fitting[:MAX_IDENTIFIERS])
    return kept


def _fits(identifier: str, settings: Any) -> bool:
    try:
        return len(identifier) + len(json.dumps(settings)) <= MAX_SETTINGS
    except (RecursionError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class ClientCapabilities:
    """The capabilities of a client. Two are equal if servers are told the same of both, and share sessions then."""

    declared: JsonObject = field(default_factory=dict, compare=False)
    announced: JsonObject = field(init=False, compare=False)
    """The part that servers are told of."""
    key: str = field(init=False)

    def __post_init__(self) -> None:
        announced = {name: self.declared[name] for name in ASKABLE if name in self.declared}
        announced |= without_extensions(extended_part(self.declared), (TASKS,))
        object.__setattr__(self, "announced", announced)
        object.__setattr__(self, "key", json.dumps(announced, sort_keys=True))

    def __bool__(self) -> bool:
        """Return True if servers can ask this client something."""
        return not self.announced.keys().isdisjoint(ASKABLE)

    @property
    def extended(self) -> JsonObject:
        """Return the extensions and experimental capabilities that servers are told of."""
        return {name: self.announced[name] for name in EXTENDED if name in self.announced}

    @property
    def plain(self) -> ClientCapabilities:
        """Return these capabilities without extensions."""
        return ClientCapabilities({name: self.announced[name] for name in ASKABLE if name in self.announced})

    def announces(self, name: str | None) -> bool:
        """Return True if servers are told of this capability."""
        return name in self.announced

    def refusal(self, method: str, params: Mapping[str, Any]) -> tuple[int, str] | None:
        """Return code and message for a question that this client does not support; None if it does."""
        # Slow to import, and commands that only read the manifest ask no client.
        from mcp_types.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND

        name = REQUIRED_BY.get(method)
        if name is None and self.extended and not is_of_protocol(method):
            # Only the client knows which extension a method belongs to.
            return None
        if name is None or not self.announces(name):
            return METHOD_NOT_FOUND, f"{method} is not supported by the client of this call"
        parts = self.announced[name] or _OLDEST.get(name, {})
        if name == "elicitation" and (mode := params.get("mode") or "form") not in parts:
            return INVALID_PARAMS, f"elicitation mode {str(mode)[:20]!r} is not supported by the client of this call"
        if name == "sampling" and ("tools" in params or "toolChoice" in params) and "tools" not in parts:
            return INVALID_PARAMS, "sampling with tools is not supported by the client of this call"
        return None


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """The capabilities of a server."""

    declared: JsonObject = field(default_factory=dict)

    def offers(self, name: str, part: str = "") -> bool:
        """Return True if the server has this capability, or this part of it."""
        given = self.declared.get(name)
        return given is not None and (not part or bool(given.get(part)))

    @property
    def announced(self) -> JsonObject:
        """Return the part that clients are told of."""
        offered = {
            name: {part: self.offers(name, part) for part in parts}
            for name, parts in ANNOUNCED_TO_CLIENTS.items()
            if self.offers(name)
        }
        return offered | extended_part(self.declared)

    def has_extension(self, identifier: str) -> bool:
        """Return True if the server has this extension; its settings may be empty."""
        return identifier in self.announced.get(EXTENSIONS, {})

    def runs_tasks(self, operation: str = "requests") -> bool:
        """Return True if the server runs tool calls as tasks of 2025-11-25, or can do this with tasks."""
        given = self.declared.get("tasks") or {}
        return operation in given and (operation != "requests" or "call" in (given[operation].get("tools") or {}))

    @property
    def is_extended(self) -> bool:
        """Return True if the server has extensions or experimental capabilities."""
        return bool(extended_part(self.declared))

    def beyond(self, base: ServerCapabilities) -> ServerCapabilities:
        """Return the capabilities of which clients are told, and would not be with `base`."""
        more, known = union(base, self).announced, base.announced
        return ServerCapabilities({name: parts for name, parts in more.items() if parts != known.get(name)})


Declared = TypeVar("Declared", ClientCapabilities, ServerCapabilities)

NO_CAPABILITIES = ClientCapabilities()

APPS = "io.modelcontextprotocol/ui"
"""The extension of servers with user interfaces, and of clients that show them."""

APP_TYPE = "text/html;profile=mcp-app"
"""The MIME type that a client names if it shows user interfaces."""

EVERYTHING = ClientCapabilities(
    {
        "elicitation": {"form": {}, "url": {}},
        "roots": {"listChanged": True},
        "sampling": {"context": {}, "tools": {}},
        EXTENSIONS: {APPS: {"mimeTypes": [APP_TYPE]}},
    }
)
"""All capabilities through which a client can be asked, and MCP Apps, by which servers choose what they list."""

UNKNOWN = ServerCapabilities({"prompts": {}, "resources": {"subscribe": True}, "completions": {}})
"""The capabilities that a server may have while nothing is known of it."""


def read_client(given: mcp_types.ClientCapabilities | Mapping[str, Any] | None) -> ClientCapabilities:
    """Return the capabilities in a handshake or request; none if they are invalid, which the SDK refuses."""
    import mcp_types

    try:
        read = mcp_types.ClientCapabilities.model_validate(given or {})
    except ValidationError:
        return NO_CAPABILITIES
    if not read.model_fields_set:
        return NO_CAPABILITIES
    return ClientCapabilities(_dumped(read))


def read_server(given: mcp_types.ServerCapabilities | None) -> ServerCapabilities:
    """Return the capabilities in the answer to a handshake, or to `server/discover`; none before there is one."""
    return ServerCapabilities(_dumped(given) if given else {})


def _dumped(read: BaseModel) -> JsonObject:
    """Return declared capabilities as JSON, without extensions that are too large or too deep."""
    try:
        return bounded(read.model_dump(by_alias=True, mode="json", exclude_none=True))
    except ValueError:
        return read.model_dump(by_alias=True, mode="json", exclude_none=True, exclude=set(EXTENDED))


def union(one: Declared, other: Declared) -> Declared:
    """Return the combined capabilities of two clients, or of two servers."""
    if not other.declared:
        return one
    merged = {**other.declared, **one.declared}
    for name in one.declared.keys() & other.declared.keys():
        mine, theirs = one.declared[name], other.declared[name]
        if mine != theirs:
            merged[name] = _combined(mine or _OLDEST.get(name, {}), theirs or _OLDEST.get(name, {}), MAX_DEPTH)
    return type(one)(merged)


def _combined(mine: Any, theirs: Any, depth: int) -> Any:
    """Return settings that allow what either of two allows; where they contradict each other, the first counts."""
    match mine, theirs:
        case dict(), dict() if depth:
            both = {name: _combined(mine[name], theirs[name], depth - 1) for name in mine if name in theirs}
            return {**theirs, **mine, **both}
        case list(), list() if len(mine) + len(theirs) <= MAX_COMBINED:
            return [*mine, *(each for each in theirs if each not in mine)]
    return mine or theirs


def with_tasks(announced: JsonObject) -> JsonObject:
    """Return capabilities of a client of 2026-07-28 for which the gateway handles tasks."""
    return {**announced, EXTENSIONS: {**announced.get(EXTENSIONS, {}), TASKS: {}}}


def is_of_protocol(method: str) -> bool:
    """Return True if a method is one of the protocol's own, in any version and direction, or about a task.

    Tasks have one id here and another at their server.
    """
    # Slow to import; see `ClientCapabilities.refusal`.
    from mcp_types import methods

    if method.startswith(("tasks/", "notifications/tasks")):
        return True
    return method in methods.MONOLITH_REQUESTS or method in methods.MONOLITH_NOTIFICATIONS


def announcement(own: JsonObject, servers: Iterable[ServerCapabilities]) -> JsonObject:
    """Return the capabilities to announce to a client that sees these servers, beside the gateway's `own`."""
    combined = reduce(union, servers, ServerCapabilities()).announced
    for kind in combined.keys() & {"prompts", "resources"}:
        # The gateway itself announces changes of lists.
        combined[kind]["listChanged"] = True
    return {name: given for name, given in own.items() if name not in ANNOUNCED_TO_CLIENTS} | combined
