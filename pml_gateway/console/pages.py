"""The pages: what each shows, from the answers of operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from pml_gateway.console.activity import access, activity
from pml_gateway.console.client_lists import lists
from pml_gateway.console.overview import overview
from pml_gateway.console.request import PageRequest
from pml_gateway.console.servers import add, server, servers, settings_of_tool
from pml_gateway.console.settings_page import doctor, settings
from pml_gateway.console.tool_page import tool
from pml_gateway.console.waiting import approval, held, waiting
from pml_gateway.errors import GatewayError
from pml_gateway.owner.operations import SEARCH, TOOLS
from pml_gateway.types import JsonObject


async def tools(request: PageRequest) -> JsonObject:
    """Return what a search finds, with the evidence; without words, all tools."""
    words = request.text("q")
    if not words:
        asked = {"query": None, "client": None, "is_mode_given": False, "as_client": False}
        listed = await request.source.ask(TOOLS, asked)
        return {"words": "", "rows": request.page(listed["tools"]), "unlisted": listed["unlisted"]}
    result = await request.source.ask(SEARCH, {"query": words, "limit": 50, "detail": None, "explain": True})
    found = result["structuredContent"]
    if "error" in found:
        raise GatewayError(found["error"]["message"], hint=found["error"].get("hint"))
    hits = [hit if isinstance(hit, dict) else {"name": str(hit)} for hit in found.get("hits", [])]
    return {"words": words, "hits": hits, "found": found, "rows": request.page(hits)}


Page = Callable[[PageRequest], Awaitable[JsonObject]]

PAGES: Mapping[str, Page] = {
    "overview": overview,
    "servers": servers,
    "server": server,
    "add": add,
    "settings_of_tool": settings_of_tool,
    "lists": lists,
    "tools": tools,
    "tool": tool,
    "waiting": waiting,
    "approval": approval,
    "held": held,
    "activity": activity,
    "access": access,
    "settings": settings,
    "doctor": doctor,
}
"""The pages by the name of their template."""
