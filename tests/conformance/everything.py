"""The everything-server of the SDK over HTTP; the folder with its package is the argument."""

from __future__ import annotations

import importlib
import sys

import anyio

from tests.conformance.server import RETRY_MILLISECONDS, serve_http

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    server = importlib.import_module("mcp_everything_server.server")
    options = {"event_store": server.event_store, "retry_interval": RETRY_MILLISECONDS}
    anyio.run(serve_http, server.mcp.streamable_http_app(**options))
