"""Exposure settings become the stage of the migration that they are, from everything listed to meta-tools only."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pml_gateway.config.presets import load_preset
from pml_gateway.config.problems import did_you_mean
from pml_gateway.config.settings import GatewaySection, Settings
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.types import ExposureMode


class Stage(StrEnum):
    """The four stages, in their order; each is the preset of the same name."""

    FULL_PROXY = "full_proxy"
    HYBRID_PERMISSIVE = "hybrid_permissive"
    HYBRID_BALANCED = "hybrid_balanced"
    META_ONLY = "meta_only"

    @property
    def mode(self) -> ExposureMode:
        """The exposure mode of the stage."""
        match self:
            case Stage.FULL_PROXY:
                return ExposureMode.FULL_PROXY
            case Stage.META_ONLY:
                return ExposureMode.META_ONLY
            case Stage.HYBRID_PERMISSIVE | Stage.HYBRID_BALANCED:
                return ExposureMode.HYBRID

    @property
    def next(self) -> Stage | None:
        """The stage after it, if it is not the last."""
        order = list(Stage)
        place = order.index(self) + 1
        return order[place] if place < len(order) else None


_TELLING = ("expose_meta_tools", "expose_underlying_tools", "apply_semantic_filter", "max_underlying_tools")
_HYBRID = (Stage.HYBRID_PERMISSIVE, Stage.HYBRID_BALANCED)


def stage_of(gateway: GatewaySection, mode: ExposureMode) -> Stage | None:
    """The stage a client in `mode` is in; None for semantic, and for hybrid with values of its own."""
    match mode:
        case ExposureMode.FULL_PROXY:
            return Stage.FULL_PROXY
        case ExposureMode.META_ONLY:
            return Stage.META_ONLY
        case ExposureMode.SEMANTIC:
            return None
        case ExposureMode.HYBRID:
            return next((stage for stage in _HYBRID if _says(gateway, stage)), None)


def _says(gateway: GatewaySection, stage: Stage) -> bool:
    hybrid = load_preset(stage.value).values["gateway"]["hybrid"]
    same = all(getattr(gateway.hybrid, key) == hybrid[key] for key in _TELLING)
    return same and gateway.hybrid.semantic_threshold == hybrid["semantic_threshold"]


def stage_in(settings: Settings, client: str | None = None) -> Stage | None:
    """The stage of the gateway, or of one configured client.

    Raises:
        UsageError: no such client.
    """
    own = None if client is None else _entry(settings, client)
    return stage_of(settings.gateway, own or settings.gateway.tools_exposure)


def values_of(stage: Stage, settings: Settings, client: str | None = None) -> dict[str, Any]:
    """What the configuration has to say for a stage: the preset's values, or one client's mode.

    Raises:
        ConfigurationError: no such client (UsageError), or its stage would change what others get.
    """
    preset = load_preset(stage.value).values
    if client is None:
        return dict(preset)
    _entry(settings, client)
    values: dict[str, Any] = {"clients": {client: {"mode": stage.mode.value}}}
    if stage.mode is not ExposureMode.HYBRID or _says(settings.gateway, stage):
        return values
    others = {name: each.mode for name, each in settings.clients.items() if name != client}
    modes = {"the gateway": settings.gateway.tools_exposure, **others}
    sharing = [name for name, mode in modes.items() if mode in (ExposureMode.HYBRID, ExposureMode.SEMANTIC)]
    if sharing:
        raise ConfigurationError(
            f"{client} cannot move to {stage} alone: {', '.join(sharing)} would get its hybrid values as well",
            hint="move all together without --client, or this client to meta_only or full_proxy",
        )
    return {**values, "gateway": {"hybrid": dict(preset["gateway"]["hybrid"])}}


def with_values(settings: Settings, values: dict[str, Any]) -> Settings:
    """The settings with the values of a stage laid over them."""
    given = values.get("gateway", {})
    gateway = settings.gateway
    hybrid = gateway.hybrid.model_copy(update=given.get("hybrid", {}))
    full = gateway.full_proxy.model_copy(update=given.get("full_proxy", {}))
    mode = ExposureMode(given.get("tools_exposure", gateway.tools_exposure))
    clients = {
        name: entry.model_copy(update={"mode": ExposureMode(values["clients"][name]["mode"])})
        if name in values.get("clients", {})
        else entry
        for name, entry in settings.clients.items()
    }
    changed = gateway.model_copy(update={"tools_exposure": mode, "hybrid": hybrid, "full_proxy": full})
    return settings.model_copy(update={"gateway": changed, "clients": clients})


def _entry(settings: Settings, client: str) -> ExposureMode | None:
    if client not in settings.clients:
        known = ", ".join(settings.clients) or "none"
        raise UsageError(
            f"no client {client!r} is configured{did_you_mean(client, settings.clients)}",
            hint=f"configured clients: {known}",
        )
    return settings.clients[client].mode
