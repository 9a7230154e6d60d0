"""Sources of the examples of a catalog's tools: the library first, then the shipped ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pml_gateway.catalog.model import CatalogTool
from pml_gateway.config.commands.packages import package_of
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.errors import GatewayError
from pml_gateway.example_queries.library import ExampleLibrary, ExampleOrigin, ExampleQuery, chosen, definition_digest
from pml_gateway.example_queries.shipped import ServerTools, ShippedDefinition, ShippedExamples
from pml_gateway.gc_pause import collection_put_off
from pml_gateway.storage.places import EXAMPLES, warn_unwritable

MAX_RECOGNISED = 200
"""Listings of servers whose examples are kept, the latest: gateways of one process ask for the same ones."""


def tool_digest(tool: CatalogTool) -> str:
    """Return the key of a tool in the library."""
    return definition_digest(tool.name, tool.description, parameter_names(tool))


def parameter_names(tool: CatalogTool) -> tuple[str, ...]:
    """Return the names of a tool's parameters, in the order of its schema."""
    properties = tool.definition["inputSchema"].get("properties")
    return tuple(map(str, properties)) if isinstance(properties, dict) else ()


def packages_of(servers: Mapping[str, UpstreamDefinition]) -> dict[str, str]:
    """Return the packages that the commands of servers run, by the servers' ids."""
    return {
        server: name
        for server, definition in servers.items()
        if definition.command and (name := package_of(definition.command, definition.args).name)
    }


@dataclass(frozen=True, slots=True)
class _RecognisedServer:
    """A server's tools when it was last examined, with the digest and the shipped examples of each."""

    package: str
    tools: tuple[CatalogTool, ...]
    digests: tuple[str, ...]
    shipped: tuple[tuple[str, ...], ...]

    def is_of(self, package: str, tools: Sequence[CatalogTool]) -> bool:
        return (
            package == self.package
            and len(tools) == len(self.tools)
            and all(now is then or now == then for now, then in zip(tools, self.tools, strict=True))
        )


class ToolExamples:
    """The examples of tools, found out once for every listing of a server. Blocks: call it in a thread."""

    def __init__(self, library: ExampleLibrary, shipped: ShippedExamples | None = None) -> None:
        self.library = library
        self._shipped = shipped or ShippedExamples()
        self._known: dict[str, _RecognisedServer] = {}
        self._recognised: dict[ServerTools, tuple[tuple[str, ...], ...]] = {}

    def of(
        self, tools: Sequence[CatalogTool], servers: Mapping[str, UpstreamDefinition]
    ) -> list[tuple[ExampleQuery, ...]]:
        """Return the examples of each tool, the owner's first.

        Args:
            tools: all tools of every server that has one among them, by which it is recognised.
            servers: as they are configured; a package that a command names tells what server it is.
        """
        with collection_put_off():
            return self._of(tools, packages_of(servers))

    def _of(self, tools: Sequence[CatalogTool], packages: Mapping[str, str]) -> list[tuple[ExampleQuery, ...]]:
        places: defaultdict[str, list[int]] = defaultdict(list)
        for at, tool in enumerate(tools):
            places[tool.upstream_id].append(at)
        listed = {server: tuple(tools[at] for at in ats) for server, ats in places.items()}
        looked_at = self._look_at(listed, packages)
        kept = self.library.all()
        found: list[tuple[ExampleQuery, ...]] = [()] * len(tools)
        for server, ats in places.items():
            known = looked_at[server]
            for at, digest, texts in zip(ats, known.digests, known.shipped, strict=True):
                own, ours = kept.get(digest, ()), (ExampleQuery(text, ExampleOrigin.SHIPPED) for text in texts)
                found[at] = chosen((*own, *ours)) if own else tuple(ours)
        self._note_seen({digest for known in looked_at.values() for digest in known.digests})
        return found

    def _look_at(
        self, listed: Mapping[str, tuple[CatalogTool, ...]], packages: Mapping[str, str]
    ) -> Mapping[str, _RecognisedServer]:
        """Find out about servers that are new or list something else now, and forget those that are gone."""
        # Of its own until it is complete: another thread may look at another catalog meanwhile.
        looked_at = {server: known for server, known in self._known.items() if server in listed}
        changed = [
            server
            for server, tools in listed.items()
            if server not in looked_at or not looked_at[server].is_of(packages.get(server, ""), tools)
        ]
        listings = [
            ServerTools(
                tuple(ShippedDefinition(tool.name, tool.description) for tool in listed[server]),
                packages.get(server, ""),
            )
            for server in changed
        ]
        # Replaced as one: another thread may read it.
        recognised = {listing: known for listing in listings if (known := self._recognised.get(listing)) is not None}
        unknown = [listing for listing in dict.fromkeys(listings) if listing not in recognised]
        recognised |= zip(unknown, self._shipped.examples_of(unknown), strict=True)
        for server, listing in zip(changed, listings, strict=True):
            tools, shipped = listed[server], recognised[listing]
            looked_at[server] = _RecognisedServer(listing.package, tools, tuple(map(tool_digest, tools)), shipped)
        latest = {**self._recognised, **recognised}
        self._recognised = dict([*latest.items()][-MAX_RECOGNISED:])
        self._known = looked_at
        return looked_at

    def _note_seen(self, digests: Collection[str]) -> None:
        try:
            self.library.note_seen(digests)
        except GatewayError as error:
            warn_unwritable(EXAMPLES, self.library.path, error)
