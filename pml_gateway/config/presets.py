"""Presets: named, complete exposure configurations, read from their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pml_gateway.config.document import parse, read_bytes
from pml_gateway.config.layers import KeyPath, leaves
from pml_gateway.config.settings import GatewaySection
from pml_gateway.errors import ConfigurationError, UsageError
from pml_gateway.paths import PACKAGE, shipped_places
from pml_gateway.text import suggestion
from pml_gateway.types import MODES

PRESET_NAMES = tuple(preset for facts in MODES.values() for preset in facts.presets)
"""From the fewest listed tools to all of them."""

PRESET_LIKENESS = 0.4
"""One word of a preset's name is enough: `hybrid` means the first that has it."""

EXPOSURE_KEYS: tuple[KeyPath, ...] = (
    ("gateway", "tools_exposure"),
    ("gateway", "hybrid", "expose_meta_tools"),
    ("gateway", "hybrid", "expose_underlying_tools"),
    ("gateway", "hybrid", "apply_semantic_filter"),
    ("gateway", "hybrid", "max_underlying_tools"),
    ("gateway", "hybrid", "semantic_threshold"),
    ("gateway", "hybrid", "max_tokens"),
    ("gateway", "hybrid", "fallback"),
    ("gateway", "full_proxy", "expose_meta_tools"),
)
"""All that a preset sets, and every one of them sets them all."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A complete exposure configuration; `summary` is the first line of its comment."""

    name: str
    path: Path
    summary: str
    values: Mapping[str, Any]

    def leaves(self) -> dict[KeyPath, Any]:
        """Return the exposure keys and what the preset sets them to."""
        return dict(leaves(self.values))


def preset_directory(package: Path = PACKAGE) -> Path:
    """Return the presets of an installed package, or those of a checkout.

    Raises:
        ConfigurationError: neither exists.
    """
    shipped, checkout = shipped_places("presets", package=package)
    for directory in (shipped, checkout):
        if (directory / f"{PRESET_NAMES[0]}.yaml").is_file():
            return directory
    raise ConfigurationError(
        f"no presets in {shipped} or {checkout}", hint="the installation is incomplete; install pml-gateway again"
    )


def load_preset(name: str, package: Path = PACKAGE) -> Preset:
    """Return the preset called `name`.

    Raises:
        UsageError: there is none; the message lists them and names the nearest.
    """
    if name not in PRESET_NAMES:
        near = suggestion(name, PRESET_NAMES, likeness=PRESET_LIKENESS)
        raise UsageError(f"no preset {name!r}{near}", hint=f"choose from {', '.join(PRESET_NAMES)}")
    path = preset_directory(package) / f"{name}.yaml"
    content = read_bytes(path)
    layer = parse(content, "preset", path)
    first = content.decode().partition("\n")[0]
    return Preset(name, path, first.lstrip("# ").strip(), layer.values)


def with_preset(gateway: GatewaySection, name: str) -> GatewaySection:
    """Return the exposure that a preset sets, over a section that keeps the rest."""
    return GatewaySection.model_validate(_overlaid(gateway.model_dump(), load_preset(name).values["gateway"]))


def _overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _overlaid(merged[key], value) if isinstance(value, Mapping) else value
    return merged
