"""One MCP endpoint in front of many MCP servers, with control over how many tools a model sees."""

from __future__ import annotations

from importlib import import_module

# As type checkers know it: `typing` alone is half a megabyte, and there is a bridge for every client.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pml_gateway.config.load import LoadedSettings, load_settings
    from pml_gateway.config.settings import Settings
    from pml_gateway.errors import ConfigurationError, GatewayError, UpstreamError
    from pml_gateway.gateway.gateway import Gateway, open_gateway
    from pml_gateway.index.search import ToolIndex
    from pml_gateway.paths import Paths
    from pml_gateway.types import ExposureMode

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "ExposureMode",
    "Gateway",
    "GatewayError",
    "LoadedSettings",
    "Paths",
    "Settings",
    "ToolIndex",
    "UpstreamError",
    "load_settings",
    "open_gateway",
]

_HOMES = {
    "ConfigurationError": "errors",
    "ExposureMode": "types",
    "Gateway": "gateway.gateway",
    "GatewayError": "errors",
    "LoadedSettings": "config.load",
    "Paths": "paths",
    "Settings": "config.settings",
    "ToolIndex": "index.search",
    "UpstreamError": "errors",
    "load_settings": "config.load",
    "open_gateway": "gateway.gateway",
}


def __getattr__(name: str) -> Any:
    """Load a public name on its first use: importing the package alone loads nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
