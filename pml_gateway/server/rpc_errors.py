"""The gateway's errors become JSON-RPC errors, for the methods whose results cannot carry one."""

from __future__ import annotations

from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS

from pml_gateway.catalog.wire import LATEST_VERSION
from pml_gateway.errors import GatewayError, InvalidInputError, innermost

RESOURCE_NOT_FOUND = -32002
"""Of the handshake versions; 2026-07-28 has invalid params instead."""


def answered_error(error: GatewayError) -> MCPError | None:
    """The error with which an upstream answered, as it was; nothing if it did not answer."""
    if "jsonrpc_code" in error.details and error.__cause__ is not None:
        cause = innermost(error.__cause__)
        if isinstance(cause, MCPError):
            return MCPError(cause.code, cause.message, cause.error.data)
    return None


def as_rpc_error(error: GatewayError) -> MCPError:
    """What an upstream answered goes on as it is; what kept it from answering says so in its data."""
    answered = answered_error(error)
    if answered is not None:
        return answered
    code = INVALID_PARAMS if isinstance(error, InvalidInputError) else INTERNAL_ERROR
    data = {
        "code": str(error.code),
        "retryable": error.retryable,
        "hint": error.hint,
        "details": error.details,
    }
    return MCPError(code, str(error), data)


def prompt_not_found(name: str) -> MCPError:
    """The same for a hidden prompt as for none."""
    return MCPError(INVALID_PARAMS, f"Unknown prompt: {name[:200]}")


def resource_not_found(uri: str, version: str) -> MCPError:
    """The same for a hidden resource as for none."""
    code = INVALID_PARAMS if version >= LATEST_VERSION else RESOURCE_NOT_FOUND
    return MCPError(code, f"Resource not found: {uri[:200]}", {"uri": uri})
