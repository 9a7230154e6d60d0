"""A definition and the defaults become the terms on which one upstream is used."""

from __future__ import annotations

from dataclasses import dataclass

from pml_gateway.config.servers import Transport, UpstreamDefinition
from pml_gateway.config.settings import UpstreamSettings


@dataclass(frozen=True, slots=True)
class Terms:
    """One upstream as it is configured, and how long and how much it is used where it says nothing of its own."""

    upstream_id: str
    definition: UpstreamDefinition
    defaults: UpstreamSettings

    @property
    def transport(self) -> Transport:
        """How it is reached."""
        return self.definition.resolved_transport

    @property
    def call_timeout(self) -> float:
        """Seconds for a request."""
        return self.definition.call_timeout or self.defaults.call_timeout

    @property
    def connect_timeout(self) -> float:
        """Seconds for opening a connection."""
        return self.definition.connect_timeout or self.defaults.connect_timeout

    @property
    def max_concurrent(self) -> int:
        """Requests at the same time."""
        return self.definition.max_concurrent or self.defaults.max_concurrent

    @property
    def max_queue(self) -> int:
        """Requests that wait for a place; 0 is a limit, too."""
        return self.defaults.max_queue if self.definition.max_queue is None else self.definition.max_queue

    @property
    def max_sessions(self) -> int:
        """Sessions of single clients."""
        return self.definition.max_sessions or self.defaults.max_sessions

    @property
    def per_client(self) -> bool:
        """Whether every client has a session of its own."""
        return self.definition.sessions == "per_client"

    @property
    def where_to_look(self) -> str:
        """What helps whoever wants to know why it does not answer."""
        if self.transport is not Transport.STDIO:
            return "is it running, and is the url that of its MCP endpoint?"
        return f"its messages: pml upstreams logs {self.upstream_id}"
