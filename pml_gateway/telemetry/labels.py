"""Labels of metrics: values from requests, limited in number."""

from __future__ import annotations

from pml_gateway.telemetry.events import OUTCOMES, PROTOCOL_ERROR

OTHER = "other"

METHODS = frozenset(
    {
        "completion/complete",
        "initialize",
        "logging/setLevel",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "server/discover",
        "subscriptions/listen",
        "tools/call",
        "tools/list",
    }
)


def known_method(method: str) -> str:
    """Return a method of the protocol, or `other`; clients can send any text as a method."""
    return method if method in METHODS else OTHER


def known_outcome(code: str) -> str:
    """Return one of the published outcomes."""
    return code if code in OUTCOMES else PROTOCOL_ERROR


class BoundedTools:
    """The tools with labels of their own: the first ones called, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[tuple[str, str]] = set()

    def label(self, upstream: str, tool: str) -> str:
        """Return the tool's name, or `other` once there are too many."""
        if not tool or (upstream, tool) in self._known:
            return tool
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add((upstream, tool))
        return tool
