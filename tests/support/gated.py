"""A handshake server that looks at what its client announced, and lists by that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from tests.support.asking import AskingUpstream, act
from tests.support.memory import tool

TEXT = {"text": {"type": "string"}}
GATES = {"ask": "elicitation", "sample": "sampling", "roots": "roots", "both": "elicitation sampling", "plain": ""}
"""Tool to what its client must be able to; `lonely` is for those that can do nothing."""


@dataclass
class GatedUpstream(AskingUpstream):
    """It lists its tools and one more prompt and resource by what each session's client can be asked."""

    gates: dict[str, str] = field(default_factory=lambda: dict(GATES))
    offers_more: bool = True
    announced: list[tuple[str, ...]] = field(default_factory=list)

    def server(self) -> Server[Any]:
        server = super().server()

        async def by_abilities(ctx: Any, call_next: Any) -> Any:
            given = ctx.session.client_capabilities
            able = set() if given is None else set(given.model_dump(exclude_none=True)) - {"experimental"}
            if ctx.method == "notifications/initialized":
                self.announced.append(tuple(sorted(able)))
            uri = str((ctx.params or {}).get("uri"))
            if ctx.method == "resources/read" and uri not in ("ask://who", *(["ask://sampled"] if able else [])):
                raise MCPError(-32002, f"Resource not found: {uri}")
            result = await call_next(ctx)
            match ctx.method:
                case "tools/list":
                    return {**result, "tools": [each for each in result["tools"] if self._opens(each["name"], able)]}
                case "prompts/list" | "resources/list":
                    kind = ctx.method.partition("/")[0]
                    return {**result, kind: [*result[kind], *self._more(kind, able)]}
            return result

        server.middleware.insert(0, by_abilities)
        return server

    def _opens(self, name: str, able: set[str]) -> bool:
        return not able if name == "lonely" else set(self.gates[name].split()) <= able

    def _more(self, kind: str, able: set[str]) -> list[Mapping[str, Any]]:
        if "sampling" not in able or not self.offers_more:
            return []
        more: dict[str, Any] = {
            "prompts": mcp_types.Prompt(name="sampled"),
            "resources": mcp_types.Resource(uri="ask://sampled", name="sampled"),
        }
        return [more[kind].model_dump(by_alias=True, mode="json", exclude_none=True)]


def gated(**gates: str) -> GatedUpstream:
    """The upstream, with these tools beside `GATES`."""
    wanted = {**GATES, "lonely": "", **gates}
    return GatedUpstream([tool(name, properties=TEXT) for name in wanted], act, gates=wanted)
