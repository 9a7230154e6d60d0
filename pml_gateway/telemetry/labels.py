"""Labels of metrics: values of requests, bounded in number."""

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
    """A method of the protocol; clients can send any text as one."""
    return method if method in METHODS else OTHER


def known_outcome(code: str) -> str:
    """An outcome of the published codes."""
    return code if code in OUTCOMES else PROTOCOL_ERROR


class BoundedTools:
    """Lets the first tools that are called have labels of their own."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[tuple[str, str]] = set()

    def label(self, upstream: str, tool: str) -> str:
        """The tool's name, or `other` once there are too many."""
        if not tool or (upstream, tool) in self._known:
            return tool
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add((upstream, tool))
        return tool
