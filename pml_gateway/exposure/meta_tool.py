"""The gateway's own tools: the record of one, and the collection of all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache

from pml_gateway.config.settings import META_TOOLS, Settings
from pml_gateway.exposure.instructions import NO_SYSTEMS, Systems
from pml_gateway.exposure.vocabulary import Parameters, SchemaReading, read, read_call
from pml_gateway.types import JsonObject

RESERVED = frozenset(META_TOOLS)
"""Names that upstream tools cannot have."""

Handler = Callable[..., Awaitable[JsonObject]]
"""Handles a call: (context, arguments) to the result; an exception becomes an error result.

The context belongs to a gateway, which imports this module, so that its type cannot be named here.
"""


def _always(_: Settings) -> bool:
    return True


def _never(_: Settings, _systems: Systems) -> None:
    return None


@dataclass(frozen=True, slots=True)
class MetaTool:
    """One of the gateway's own tools.

    Args:
        name: one of the names that `gateway.meta_tools` allows.
        definition: returns its tool definition, given the servers behind the gateway.
        handler: handles its calls.
        aliases: names that other gateways use for it; an upstream tool of that name takes precedence.
        is_useful: returns True if it has a purpose with these settings.
        beside_namespaces: returns its definition next to namespaces; None if it is not listed there.
        unlisted: keys that it reads, but does not declare.
        is_call: True if its arguments are one call, which may have the tool's arguments next to its name.
        calls_in: key of its list of calls, if it has one.
    """

    name: str
    definition: Callable[[Systems], JsonObject]
    handler: Handler
    aliases: tuple[str, ...] = ()
    is_useful: Callable[[Settings], bool] = _always
    beside_namespaces: Callable[[Settings, Systems], JsonObject | None] = _never
    unlisted: tuple[str, ...] = ()
    is_call: bool = False
    calls_in: str = ""

    def read(self, given: JsonObject, parameters: Parameters) -> SchemaReading:
        """Return the request under the declared keys.

        Raises:
            UnreadableKeysError: a key is unknown, or two keys with one meaning have different values.
        """
        if self.is_call:
            return read_call(given, _keys(self), "name", parameters)
        return read(given, _keys(self), calls_in=self.calls_in)

    def is_enabled(self, settings: Settings) -> bool:
        """Return True if it can be called."""
        return self.name in settings.gateway.meta_tools and self.is_useful(settings)


@cache
def _keys(tool: MetaTool) -> tuple[str, ...]:
    return (*tool.definition(NO_SYSTEMS)["inputSchema"]["properties"], *tool.unlisted)


class MetaTools:
    """The meta-tools of a gateway, in the order in which they are listed."""

    def __init__(self, *tools: MetaTool) -> None:
        self._tools = tools
        self._by_name = {name: tool for tool in tools for name in (tool.name, *tool.aliases)}

    def __iter__(self) -> Iterator[MetaTool]:
        return iter(self._tools)

    def __contains__(self, name: object) -> bool:
        """Return True if a meta-tool has this name or alias."""
        return name in self._by_name

    @property
    def names(self) -> frozenset[str]:
        """Return all names and aliases."""
        return frozenset(self._by_name)

    def find(self, name: str) -> MetaTool | None:
        """Return the meta-tool of this name or alias."""
        return self._by_name.get(name)

    def by_name(self, name: str) -> MetaTool:
        """Return the meta-tool of this name, which must exist."""
        return self._by_name[name]

    def enabled(self, settings: Settings) -> list[MetaTool]:
        """Return the meta-tools that can be called."""
        return [tool for tool in self._tools if tool.is_enabled(settings)]

    def definitions(self, settings: Settings, systems: Systems) -> list[JsonObject]:
        """Return the definitions of the meta-tools that can be called."""
        return [tool.definition(systems) for tool in self.enabled(settings)]

    def definitions_beside_namespaces(self, settings: Settings, systems: Systems) -> list[JsonObject]:
        """Return the definitions of the meta-tools that are listed next to namespaces."""
        definitions = (tool.beside_namespaces(settings, systems) for tool in self.enabled(settings))
        return [definition for definition in definitions if definition is not None]
