"""Upgrades of published servers: the trust gate and the lint hold nothing back of what ordinary versions list."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.upgrades import Upgrade, Version, upgrades
from pml_gateway.catalog.manifest import ManifestEntry
from pml_gateway.config.settings import Settings
from pml_gateway.mcp.listing import Offers
from pml_gateway.trust.pins_file import PinsFile
from pml_gateway.trust.trust_gate import TrustGate
from pml_gateway.trust.verdict import SubjectKind

SETTINGS = Settings.model_validate({"servers": {"up": {"command": "never-started"}}})
UPGRADES = [*upgrades()]

HELD_OUT_AND_HELD = {"chrome-devtools-mcp 0.19.0 -> 1.11.0"}
"""Upgrades that are held out and lose something; what they lose is not looked at."""


def entry(version: Version) -> ManifestEntry:
    offers = Offers(prompts=version.prompts, templates=version.templates, instructions=version.instructions)
    return ManifestEntry(
        SETTINGS.servers["up"].fingerprint(),
        version.tools,
        0.0,
        server_name=version.name,
        server_version=version.version,
        offers=offers,
    )


def test_there_are_enough_upgrades_and_some_that_no_rule_was_made_with_in_view() -> None:
    assert len(UPGRADES) >= 60
    assert len({each.package for each in UPGRADES}) >= 40
    assert sum(each.is_held_out for each in UPGRADES) >= 10
    assert all(each.before != each.after for each in UPGRADES)


@pytest.mark.parametrize("upgrade", UPGRADES, ids=lambda each: each.name)
def test_an_upgrade_is_served_whole(upgrade: Upgrade, tmp_path: Path) -> None:
    trust_gate = TrustGate(PinsFile(tmp_path, "id"))
    before, after = entry(upgrade.before), entry(upgrade.after)
    assert trust_gate.admit({"up": before}, SETTINGS.servers, SETTINGS.trust)["up"] is before
    trust_gate.note(trust_gate.unlinted())
    served = trust_gate.admit({"up": after}, SETTINGS.servers, SETTINGS.trust)["up"]
    held = {name or str(SubjectKind.INSTRUCTIONS) for _, name in trust_gate.servers["up"].held}
    if upgrade.is_held_out:
        assert bool(held) is (upgrade.name in HELD_OUT_AND_HELD)
    else:
        assert not held
    assert held or served is after
