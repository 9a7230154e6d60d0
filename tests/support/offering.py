"""Upstreams in memory that offer prompts, resources and templates beside tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import mcp_types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated

from tests.support.memory import FakeUpstream


def prompt(name: str, **extra: Any) -> dict[str, Any]:
    """One prompt definition."""
    return {"name": name, "description": f"The {name} prompt.", **extra}


def resource(uri: str, **extra: Any) -> dict[str, Any]:
    """One resource definition."""
    return {"uri": uri, "name": uri.rpartition("/")[2] or uri, **extra}


def template(uri_template: str, **extra: Any) -> dict[str, Any]:
    """One resource template."""
    return {"uriTemplate": uri_template, "name": uri_template, **extra}


class OfferingServer(Server[Any]):
    """Announces the changes of every list, whoever opens the connection."""

    def create_initialization_options(self, *_: Any, **__: Any) -> Any:
        options = NotificationOptions(tools_changed=True, prompts_changed=True, resources_changed=True)
        return super().create_initialization_options(options)


@dataclass
class OfferingUpstream(FakeUpstream):
    """A real MCP server that answers every method about offers and records what it was asked."""

    id: str = "up"
    prompts: list[dict[str, Any]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    templates: list[dict[str, Any]] = field(default_factory=list)
    instructions: str | None = None
    unlisted: set[str] = field(default_factory=set)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    subscribed: list[str] = field(default_factory=list)
    answer: Callable[[Any, str, dict[str, Any]], Awaitable[dict[str, Any] | None]] | None = None
    bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)
    streams: list[list[str]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    def count(self, method: str) -> int:
        """How often a method was called."""
        return sum(1 for asked, _ in self.asked if asked == method)

    def server(self) -> Server[Any]:
        """The server of one connection."""
        plain = super().server()
        server = OfferingServer("fake", version="1", instructions=self.instructions)
        server.middleware[1:] = plain.middleware[1:]
        for method in ("tools/list", "tools/call"):
            entry = plain.get_request_handler(method)
            assert entry is not None
            server.add_request_handler(method, entry.params_type, entry.handler)
        types: dict[str, Any] = {
            "prompts/list": mcp_types.PaginatedRequestParams,
            "prompts/get": mcp_types.GetPromptRequestParams,
            "resources/list": mcp_types.PaginatedRequestParams,
            "resources/templates/list": mcp_types.PaginatedRequestParams,
            "resources/read": mcp_types.ReadResourceRequestParams,
            "completion/complete": mcp_types.CompleteRequestParams,
            "resources/subscribe": mcp_types.SubscribeRequestParams,
            "resources/unsubscribe": mcp_types.UnsubscribeRequestParams,
        }

        async def handle(ctx: Any, _: Any) -> Any:
            if ctx.session not in self.sessions:
                self.sessions.append(ctx.session)
            params = dict(ctx.params or {})
            self.asked.append((ctx.method, params))
            given = await self.answer(ctx, ctx.method, params) if self.answer is not None else None
            answered = self._answer(ctx.method, params) if given is None else given
            return {"resultType": "complete", **answered} if self.modern else answered

        for method, params_type in types.items():
            server.add_request_handler(method, params_type, handle)
        if self.modern:
            listen = ListenHandler(self.bus)

            async def on_listen(ctx: Any, params: mcp_types.SubscriptionsListenRequestParams) -> Any:
                uris = list(params.notifications.resource_subscriptions or ())
                if self.refused & set(uris):
                    raise MCPError(-32602, "no such resource", {"uri": sorted(self.refused & set(uris))[0]})
                self.streams.append(uris)
                try:
                    return await listen(ctx, params)
                finally:
                    self.streams.remove(uris)

            server.add_request_handler("subscriptions/listen", mcp_types.SubscriptionsListenRequestParams, on_listen)
        return server

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        cacheable = {"ttlMs": 0, "cacheScope": "private"}
        match method:
            case "prompts/list":
                return {**self._page("prompts", self.prompts, params), **cacheable}
            case "resources/list":
                return {**self._page("resources", self.resources, params), **cacheable}
            case "resources/templates/list":
                return {**self._page("resourceTemplates", self.templates, params), **cacheable}
            case "prompts/get":
                if params["name"] not in {each["name"] for each in self.prompts}:
                    raise MCPError(-32602, "no such prompt", {"name": params["name"]})
                text = f"{self.id} {params['name']} {sorted((params.get('arguments') or {}).items())}"
                return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
            case "resources/read":
                known = {each["uri"] for each in self.resources} | self.unlisted
                if params["uri"] not in known:
                    raise MCPError(-32002, "no such resource", {"uri": params["uri"]})
                return {"contents": [{"uri": params["uri"], "text": f"{self.id} {params['uri']}"}], **cacheable}
            case "completion/complete":
                ref = params["ref"]
                return {"completion": {"values": [self.id, str(ref.get("name") or ref.get("uri"))]}}
            case "resources/subscribe":
                if params["uri"] not in {each["uri"] for each in self.resources} | self.unlisted:
                    raise MCPError(-32002, "no such resource", {"uri": params["uri"]})
                self.subscribed.append(params["uri"])
            case "resources/unsubscribe":
                self.subscribed.remove(params["uri"])
        return {}

    def _page(self, key: str, listed: list[dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
        start = int(params.get("cursor") or 0)
        end = len(listed) if self.page_size is None else start + self.page_size
        more = {"nextCursor": str(end)} if end < len(listed) else {}
        return {key: listed[start:end], **more}

    async def announce(self, kind: str) -> None:
        """Tell every connected client that a list changed."""
        if self.modern:
            await self.bus.publish(PromptsListChanged() if kind == "prompts" else ResourcesListChanged())
        for session in () if self.modern else self.sessions[-1:]:
            await getattr(session, f"send_{kind.removesuffix('s')}_list_changed")()

    async def announce_update(self, uri: str) -> None:
        """Tell every connected client that a resource changed."""
        if self.modern:
            await self.bus.publish(ResourceUpdated(uri=uri))
        for session in () if self.modern else self.sessions[-1:]:
            await session.send_resource_updated(uri)
