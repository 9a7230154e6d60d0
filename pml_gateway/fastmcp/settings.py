"""The settings of an `Exposure`: the gateway's own tree, as far as a server without upstreams has a use for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from pml_gateway.config.layers import dotted
from pml_gateway.config.problems import plain_message
from pml_gateway.config.sets import unknown_names
from pml_gateway.config.settings import KNOWN_META_TOOLS, Settings
from pml_gateway.errors import ConfigurationError
from pml_gateway.text import did_you_mean, likenesses
from pml_gateway.types import ExposureMode

SECTIONS = ("gateway", "search", "references", "workflow", "limits", "learning", "rules")
"""Settings that concern tools, not processes, connections, files or clients."""

_ONLY = {"style": "tools", "legacy_tools": False, "direct_calls": "visible"}
_NO_GATEWAY = "run the gateway in front of the server for it (pml docs servers)"


def read_settings(
    mode: ExposureMode | str, intent: str | None, meta_tools: Sequence[str], given: Mapping[str, Any]
) -> Settings:
    """Return the whole tree, checked.

    Raises:
        ConfigurationError: names the value and what may be written.
    """
    foreign = [key for key in given if key not in SECTIONS]
    if foreign:
        raise ConfigurationError(
            f"settings: {foreign[0]!r} is nothing that a FastMCP server can use",
            hint=f"write one of {', '.join(SECTIONS)}; or {_NO_GATEWAY}",
        )
    section = dict(given.get("gateway") or {})
    for key in ("tools_exposure", "intent", "meta_tools"):
        if key in section:
            raise ConfigurationError(
                f"settings: gateway.{key} is an argument of Exposure",
                hint="write Exposure(mode, intent=..., meta_tools=...)",
            )
    unknown = [name for name in meta_tools if name not in KNOWN_META_TOOLS]
    if unknown:
        raise ConfigurationError(
            f"meta_tools: no {unknown[0]!r} here", hint=f"choose from {', '.join(KNOWN_META_TOOLS)}"
        )
    section |= {"tools_exposure": _mode(mode), "intent": intent, "meta_tools": tuple(meta_tools)}
    try:
        settings = Settings.model_validate(
            {**given, "gateway": section, "naming": {"prefix": "never", "max_length": 128}}
        )
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise ConfigurationError(
            f"settings: {dotted(fault['loc'])}: {plain_message(fault, fault['loc'])}",
            hint="pml docs settings lists them all",
        ) from None
    for path, message in unknown_names(settings):
        raise ConfigurationError(f"settings: {dotted(path)}: {message}", hint=_NO_GATEWAY)
    gateway = settings.gateway
    unserved = [key for key, value in _ONLY.items() if getattr(gateway, key) != value]
    if gateway.hybrid.fallback != "none":
        unserved.append("hybrid.fallback")
    if unserved:
        raise ConfigurationError(f"settings: gateway.{unserved[0]} is not for FastMCP servers", hint=_NO_GATEWAY)
    return settings


def _mode(mode: ExposureMode | str) -> ExposureMode:
    try:
        return ExposureMode(mode)
    except ValueError:
        close = likenesses(str(mode), {each.value: each.value for each in ExposureMode}, count=1)
        hint = did_you_mean(list(close)) or f"write one of {', '.join(ExposureMode)}"
        raise ConfigurationError(f"mode: there is no {str(mode)!r}", hint=hint) from None
