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


def test_a_rule_about_resources_prompts_or_what_is_kept_away_is_not_called_idle() -> None:
    offers = Offers(
        prompts=({"name": "brief"},),
        resources=({"uri": "res://a", "name": "a"},),
        templates=({"uriTemplate": "file:///{path}", "name": "any"},),
        has_resources=True,
    )
    catalog = replace(build_catalog([listing("fs", "read")]), offers=build_offers({"fs": offers}))
    deny = ["fs:brief", "fs:res://a", "fs:RES://a#x", "fs:file:///private/*", "f*:urn:x", "fs:gone", "fs__gone"]
    settings = Settings.model_validate(
        {
            "servers": {"fs": {"command": "fs"}},
            "gateway": {"blacklisted_tools": [*deny, "nowhere:file:///x", "fs:typo", "fs:"]},
            "clients": {"bot": {"key": "${env:KEY}", "allow": ["fs:file:///public/*", "fs:brief", "fs:typo"]}},
        }
    )
    assert [(key, entry) for key, entry, _ in idle_entries(settings, catalog, {"fs:gone", "fs__gone"})] == [
        ("gateway.blacklisted_tools", "nowhere:file:///x"),
        ("gateway.blacklisted_tools", "fs:typo"),
        ("gateway.blacklisted_tools", "fs:"),
        ("clients.bot.allow", "fs:typo"),
    ]
