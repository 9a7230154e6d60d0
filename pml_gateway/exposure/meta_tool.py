"""The gateway's own tools: the record of one, and the collection of all, which lists and calls ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache

from pml_gateway.config.settings import META_TOOLS, Settings
from pml_gateway.exposure.instructions import NO_SYSTEMS, Systems
from pml_gateway.exposure.vocabulary import Parameters, Reading, read, read_call
from pml_gateway.types import JsonObject

RESERVED = frozenset(META_TOOLS)
"""Names no upstream tool is given."""

Handler = Callable[..., Awaitable[JsonObject]]
"""(the call's context, its arguments) to the result; what it raises becomes an error result.

The context is that of a gateway, which lists these tools itself, so that its type cannot be named here.
"""


def _always(_: Settings) -> bool:
    return True


def _never(_: Settings, _systems: Systems) -> None:
    return None


@dataclass(frozen=True, slots=True)
class MetaTool:
    """One tool of the gateway's own.

    Args:
        name: one of the names that `gateway.meta_tools` knows.
        definition: how it is listed, given the servers that are behind it.
        handler: what answers it.
        aliases: names other gateways gave it; a real tool of that name wins.
        is_useful: whether there is anything for it to do with these settings.
        beside_namespaces: its definition where namespaces take the calls; None where it is not listed beside them.
        unlisted: keys it reads that its definition does not name.
        is_call: whether its arguments are one call, which may hold those of the tool beside its name.
        calls_in: the key of the list of calls that it is about.
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

    def read(self, given: JsonObject, parameters: Parameters) -> Reading:
        """What was sent, under the keys that it declares.

        Raises:
            UnreadableKeysError: a key that nothing reads, or two that say one thing differently.
        """
        if self.is_call:
            return read_call(given, _keys(self), "name", parameters)
        return read(given, _keys(self), calls_in=self.calls_in)

    def is_enabled(self, settings: Settings, also: Collection[str] = ()) -> bool:
        """Whether it can be called; `also` names those that one session has beside what the settings say."""
        return (self.name in settings.gateway.meta_tools or self.name in also) and self.is_useful(settings)


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
        """Whether a meta-tool has this name or alias."""
        return name in self._by_name

    @property
    def names(self) -> frozenset[str]:
        """All names and aliases."""
        return frozenset(self._by_name)

    def find(self, name: str) -> MetaTool | None:
        """The meta-tool of this name or alias."""
        return self._by_name.get(name)

    def by_name(self, name: str) -> MetaTool:
        """The meta-tool of this name, which there is."""
        return self._by_name[name]

    def enabled(self, settings: Settings, also: Collection[str] = ()) -> list[MetaTool]:
        """Those that can be called."""
        return [tool for tool in self._tools if tool.is_enabled(settings, also)]

    def definitions(self, settings: Settings, systems: Systems, also: Collection[str] = ()) -> list[JsonObject]:
        """The definitions of those that can be called."""
        return [tool.definition(systems) for tool in self.enabled(settings, also)]

    def definitions_beside_namespaces(
        self, settings: Settings, systems: Systems, also: Collection[str] = ()
    ) -> list[JsonObject]:
        """The definitions of those that are listed with namespaces."""
        definitions = (tool.beside_namespaces(settings, systems) for tool in self.enabled(settings, also))
        return [definition for definition in definitions if definition is not None]
