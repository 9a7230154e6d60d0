from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from pml_gateway.config.layers import leaves
from pml_gateway.config.presets import EXPOSURE_KEYS, PRESET_NAMES, load_preset, preset_directory
from pml_gateway.config.settings import GatewaySection
from pml_gateway.errors import ConfigurationError
from pml_gateway.types import ExposureMode

from .workspace import Workspace

ROOT = Path(__file__).parents[2]

PROMISES = {
    "meta_only": (ExposureMode.META_ONLY, 50, 0.6, None),
    "semantic": (ExposureMode.SEMANTIC, 50, 0.6, 7000),
    "hybrid_balanced": (ExposureMode.HYBRID, 20, 0.7, 3000),
    "hybrid_permissive": (ExposureMode.HYBRID, 50, 0.5, 7000),
    "full_proxy": (ExposureMode.FULL_PROXY, 50, 0.6, None),
}


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_a_preset_sets_what_it_promises_and_only_the_exposure(workspace: Workspace, name: str) -> None:
    loaded = workspace.load(preset=name)

    gateway = loaded.settings.gateway
    hybrid = gateway.hybrid
    found = (gateway.tools_exposure, hybrid.max_underlying_tools, hybrid.semantic_threshold, hybrid.max_tokens)
    assert found == PROMISES[name]
    assert gateway.hybrid.expose_meta_tools
    assert gateway.hybrid.expose_underlying_tools
    assert gateway.hybrid.apply_semantic_filter
    assert hybrid.fallback == ("usage" if name.startswith("hybrid") else "none")
    assert not gateway.full_proxy.expose_meta_tools
    assert tuple(load_preset(name).leaves()) == EXPOSURE_KEYS


def test_the_exposure_keys_are_all_keys_that_decide_what_is_listed() -> None:
    others = {
        "intent",
        "follow",
        "style",
        "namespaces.groups",
        "namespaces.split_by_access",
        "legacy_tools",
        "meta_tools",
        "direct_calls",
        "instructions_tokens",
        "blacklisted_tools",
        "sets",
        "sets_by_client_name",
        "hybrid.whitelisted_tools",
    }
    known = {".".join(map(str, path)) for path, _ in leaves(GatewaySection().model_dump())}

    assert known == others | {".".join(map(str, path[1:])) for path in EXPOSURE_KEYS}


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_a_preset_says_what_it_costs_and_when_to_choose_it(name: str) -> None:
    preset = load_preset(name)
    text = preset.path.read_text()

    assert "# Cost: " in text
    assert "700 real tools" in text
    assert "# Choose it " in text
    assert text.splitlines()[0] == f"# {preset.summary}"
    assert len(preset.summary) > 20


def test_there_are_exactly_five_presets() -> None:
    assert {path.stem for path in (ROOT / "presets").glob("*.yaml")} == set(PRESET_NAMES)


def test_an_unknown_preset_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean hybrid_balanced"):
        load_preset("hybrid-balancd")


def test_presets_are_found_in_an_installed_package_and_in_a_checkout(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "pml_gateway"
    package.mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="no presets in"):
        preset_directory(package)

    checkout = tmp_path / "site-packages" / "presets"
    shutil.copytree(ROOT / "presets", checkout)
    assert preset_directory(package) == checkout

    shipped = package / "_shipped" / "presets"
    shutil.copytree(ROOT / "presets", shipped)
    assert preset_directory(package) == shipped
    assert load_preset("semantic", package).path == shipped / "semantic.yaml"


def test_the_wheel_carries_the_presets_where_they_are_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]

    targets = [target for source, target in included.items() if source.startswith("presets")]

    assert targets
    assert all(target.startswith("pml_gateway/_shipped/presets") for target in targets)
