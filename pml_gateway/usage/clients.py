"""A principal becomes the name that its usage is kept under."""

from __future__ import annotations

from pml_gateway.policy.client import Client


def usage_name(client: Client) -> str:
    """Configured clients by name, `local` or `anonymous`; never the id of a session, which is a key."""
    kind, _, name = client.id.partition(":")
    return name if kind == "client" else "anonymous" if kind == "session" else kind
