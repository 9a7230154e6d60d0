"""Exposure settings become the stage of the migration that they are, from everything listed to meta-tools only."""

from __future__ import annotations

from enum import StrEnum

from pml_gateway.config.presets import load_preset
from pml_gateway.config.settings import GatewaySection
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
