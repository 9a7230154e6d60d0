"""Doctor names entries of rules that give or take nothing, and what to write instead."""

from __future__ import annotations

from dataclasses import replace

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.prompts_and_resources import build_offers
from pml_gateway.config.settings import Settings
from pml_gateway.mcp.listing import Offers
from pml_gateway.reports.doctor.finding import Severity
from pml_gateway.reports.doctor.tools import idle_entries, tools
from tests.catalog.listings import listing


def test_an_allowance_by_a_name_that_any_server_could_choose_is_told_with_the_one_to_write() -> None:
    catalog = build_catalog(
        [listing("fs", "read"), listing("evil", "github__steal"), listing("github")], prefix="never"
    )
    clients = {"bot": {"key": "${env:KEY}", "allow": ["read", "fs:read", "github__*"], "deny": ["github__steal"]}}
    settings = Settings.model_validate({"clients": clients, "naming": {"prefix": "never"}})
    wrong = [each for each in tools(settings, catalog, ()) if each.severity is Severity.WARNING]
    assert [(each.subject, each.what, each.fix) for each in wrong] == [
        (
            "clients.bot.allow",
            "'read' gives no tool: any server could call one as it names fs:read, without a server",
            "write fs:read in clients.bot.allow",
        ),
        ("clients.bot.allow", "'github__*' matches no tool", wrong[1].fix),
    ]


def test_rules_about_prompts_and_resources_are_not_taken_for_mistyped_tools() -> None:
    offers = build_offers({"fs": Offers(prompts=({"name": "greet"},), resources=({"uri": "note:1"},))})
    catalog = replace(build_catalog([listing("fs", "read")]), offers=offers)
    denied = ["fs:greet", "fs__greet", "note:1", "file:///srv/private/*", "fs:gret"]
    settings = Settings.model_validate({"clients": {"bot": {"key": "${env:KEY}", "deny": denied}}})
    assert [entry for _, entry, _ in idle_entries(settings, catalog)] == ["fs:gret"]
