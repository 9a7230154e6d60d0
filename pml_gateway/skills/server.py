"""An MCP server in memory for the skills in folders of the owner; it announces every change of a file."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mcp_types
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated

from pml_gateway import __version__
from pml_gateway.config.file_changes import FileChanges
from pml_gateway.log import get_logger
from pml_gateway.regular_files import read_regular
from pml_gateway.skills.folders import MAX_BYTES, SKILLS, Skill, SkillFault, SkillFolders, SkillReader
from pml_gateway.text import escaped
from pml_gateway.types import JsonObject

logger = get_logger(__name__)

NAME = "skills"

SETTLE_SECONDS = 0.2
"""Seconds for an editor to finish: it writes one file after the other."""

_FRESH: JsonObject = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class _Params(mcp_types.RequestParams):
    uri: str


class SkillServer:
    """Serves the skills in some folders to one client of the stateless era, the gateway."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._reader = SkillReader(roots)
        self._found = SkillFolders()
        self._told: frozenset[SkillFault] = frozenset()
        self._bus = InMemorySubscriptionBus()
        self._turn = anyio.Lock()

    async def run(self, read: Any, write: Any) -> None:
        """Serve one connection, and follow the folders, until it ends."""
        await self._read()
        changes = FileChanges()
        server = self._server()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(changes.run)
            tasks.start_soon(self._follow, changes)
            await server.run(read, write, server.create_initialization_options())
            tasks.cancel_scope.cancel()

    def _server(self) -> Server[Any]:
        server = Server(
            NAME,
            version=__version__,
            instructions="Skills of the owner of this gateway: instructions for tasks.",
            on_list_tools=self._list_tools,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
            on_subscriptions_listen=ListenHandler(self._bus),
        )
        server.extensions[SKILLS] = {}
        server.add_request_handler("skills/list", mcp_types.PaginatedRequestParams, self._list)
        server.add_request_handler("skills/get", _Params, self._get)
        return server

    async def _read(self) -> None:
        async with self._turn:
            self._found = await anyio.to_thread.run_sync(self._reader.read)
            for fault in self._found.faults:
                if fault not in self._told:
                    logger.warning("not served as a skill: %s", escaped(str(fault)))
            self._told = frozenset(self._found.faults)

    async def _follow(self, changes: FileChanges) -> None:
        while True:
            before = self._found
            roots = [root.absolute() for root in self._reader.roots]
            async with changes.of(roots, within=before.watched) as changed:
                await changed.receive()
                await anyio.sleep(SETTLE_SECONDS)
            await self._read()
            await self._announce(before.digests(), self._found.digests())

    async def _announce(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        for uri in before:
            if before[uri] != now.get(uri):
                await self._bus.publish(ResourceUpdated(uri=uri))
        if before != now:
            await self._bus.publish(ResourcesListChanged())

    async def _list_tools(self, _ctx: Any, _params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=[])

    async def _list_resources(self, _ctx: Any, _params: Any) -> mcp_types.ListResourcesResult:
        return mcp_types.ListResourcesResult(resources=[_resource(skill) for skill in self._found.skills])

    async def _read_resource(
        self, _ctx: Any, params: mcp_types.ReadResourceRequestParams
    ) -> mcp_types.ReadResourceResult:
        uri = str(params.uri)
        for skill in self._found.skills:
            if (file := skill.files.get(uri)) is not None:
                return mcp_types.ReadResourceResult(
                    contents=[await anyio.to_thread.run_sync(_contents, uri, file, skill)]
                )
        raise _unknown("file of a skill", uri)

    async def _list(self, _ctx: Any, _params: Any) -> JsonObject:
        # Not every disk announces changes.
        await self._read()
        return {"skills": [skill.entry for skill in self._found.skills], **_FRESH}

    async def _get(self, _ctx: Any, params: _Params) -> JsonObject:
        for skill in self._found.skills:
            if skill.uri == params.uri:
                return {"skill": skill.entry, **_FRESH}
        raise _unknown("skill", params.uri)


def _resource(skill: Skill) -> mcp_types.Resource:
    said = skill.entry["frontmatter"]
    return mcp_types.Resource(
        uri=skill.uri, name=said["name"], description=said["description"], mime_type="text/markdown"
    )


def _contents(uri: str, file: Path, skill: Skill) -> mcp_types.TextResourceContents | mcp_types.BlobResourceContents:
    try:
        content = read_regular(file, MAX_BYTES, within=skill.root)
    except OSError as error:
        raise _unknown("readable file of a skill", uri) from error
    mime = mimetypes.guess_type(file.name)[0]
    try:
        text = content.decode()
    except UnicodeDecodeError:
        blob = base64.b64encode(content).decode()
        return mcp_types.BlobResourceContents(uri=uri, mime_type=mime or "application/octet-stream", blob=blob)
    return mcp_types.TextResourceContents(uri=uri, mime_type=mime or "text/plain", text=text)


def _unknown(what: str, uri: str) -> MCPError:
    return MCPError(mcp_types.INVALID_PARAMS, f"no {what} is served at {uri[:200]}")
