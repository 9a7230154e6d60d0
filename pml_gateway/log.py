"""Log records become lines on stderr; stdout belongs to MCP."""

from __future__ import annotations

import logging
import sys

ROOT = "pml_gateway"


def get_logger(name: str) -> logging.Logger:
    """The logger of one module."""
    return logging.getLogger(name)


def configure(level: str = "INFO") -> None:
    """Send the gateway's records to stderr; libraries only from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    own = logging.getLogger(ROOT)
    own.handlers[:] = [handler]
    own.setLevel(level)
    own.propagate = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for noisy in ("mcp", "client", "httpx2"):
        # The SDK logs whole tracebacks, results and URLs for faults that reach the gateway as errors anyway.
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
