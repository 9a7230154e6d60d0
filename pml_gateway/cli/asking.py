"""An operation asked of the gateway of this machine by a command: one line, its answer, and notices in between."""

from __future__ import annotations

import json

from pml_gateway.local.bridge import GatewayDialer, LostError, RefusedError
from pml_gateway.local.entry import attaching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def ask(
    operation: str,
    arguments: Mapping[str, Any],
    options: Mapping[str, str | None],
    tell: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    """Return the answer of an operation; a gateway is started where there is none.

    Args:
        operation: its name.
        arguments: what it is given.
        options: `config`, `mode` and `preset` of the command line.
        tell: hears what is said meanwhile.

    Raises:
        ServeAloneError: there is no gateway to be shared.
        UnsupportedSystemError: clients cannot share a gateway here.
        RefusedError: the gateway does not take this command, or has gone before it answered.
    """
    endpoint, command, hello = attaching(options)
    link = GatewayDialer(endpoint, command).attach(
        {"operation": {"name": operation, "arguments": dict(arguments)}, **hello}
    )
    link.socket.setblocking(True)
    try:
        lines = link.early
        while True:
            for line in lines:
                if not line.startswith(b"!"):
                    answer: dict[str, Any] = json.loads(line)
                    return answer
                tell(json.loads(line[1:]))
            lines = link.read()
    except LostError:
        why = f"ended ({link.leaving})" if link.leaving else "has gone"
        raise RefusedError(
            f"the gateway (process {link.pid}) {why} before it answered",
            f"it is not known whether {operation} was carried out; {endpoint.where_logged}".rstrip("; "),
        ) from None
    finally:
        link.socket.close()
