"""For servers written with FastMCP: the modes, the search and the meta-tools as a transform, in process.

mcp.add_transform(Exposure("hybrid", intent="triage issues"))
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

NEEDED_MAJOR = 4

_REMEDY = 'install it with: pip install "fastmcp>=4,<5"'


def _installed() -> str:
    for name in ("fastmcp", "fastmcp-slim"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise ImportError(f"pml_gateway.fastmcp needs FastMCP {NEEDED_MAJOR}, which is not installed; {_REMEDY}")


if (_found := _installed()).partition(".")[0] != str(NEEDED_MAJOR):
    raise ImportError(f"pml_gateway.fastmcp needs FastMCP {NEEDED_MAJOR}, and {_found} is installed; {_REMEDY}")

from pml_gateway.fastmcp.exposure import Exposure  # noqa: E402  (not before it is known that it can be imported)

__all__ = ["Exposure"]
