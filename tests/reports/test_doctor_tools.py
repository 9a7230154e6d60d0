"""Doctor names entries of rules that give or take nothing, and what to write instead."""

from __future__ import annotations

from dataclasses import replace

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.prompts_and_resources import build_offers
from pml_gateway.config.findings import Severity
from pml_gateway.config.settings import Settings
from pml_gateway.mcp.capabilities import ServerCapabilities
from pml_gateway.mcp.listing import Offers
from pml_gateway.reports.doctor.tools import rules
from tests.catalog.listings import listing
from tests.support.cases import started_case


def test_an_allowance_by_a_name_that_any_server_could_choose_is_told_with_the_one_to_write() -> None:
    catalog = build_catalog(
        [listing("fs", "read"), listing("evil", "github__steal"), listing("github")], prefix="never"
    )
    clients = {"bot": {"key": "${env:KEY}", "allow": ["read", "fs:read", "github__*"], "deny": ["github__steal"]}}
    settings = Settings.model_validate({"clients": clients, "naming": {"prefix": "never"}})
    wrong = [each for each in rules(started_case(catalog, settings)) if each.severity is Severity.WARNING]
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
        capabilities=ServerCapabilities({"resources": {}}),
    )
    catalog = replace(build_catalog([listing("fs", "read")]), offers=build_offers({"fs": offers}))
    deny = ["fs:brief", "fs:res://a", "fs:RES://a#x", "fs:file:///private/*", "f*:urn:x", "fs:gone", "fs__gone"]
    settings = Settings.model_validate(
        {
            "servers": {"fs": {"command": "fs", "tools": {"gone": {"enabled": False}}}},
            "gateway": {"blacklisted_tools": [*deny, "nowhere:file:///x", "fs:typo", "fs:"]},
            "clients": {"bot": {"key": "${env:KEY}", "allow": ["fs:file:///public/*", "fs:brief", "fs:typo"]}},
        }
    )
    assert [(each.subject, each.what.split("'")[1]) for each in rules(started_case(catalog, settings))] == [
        ("gateway.blacklisted_tools", "nowhere:file:///x"),
        ("gateway.blacklisted_tools", "fs:typo"),
        ("gateway.blacklisted_tools", "fs:"),
        ("clients.bot.allow", "fs:typo"),
    ]


def test_a_rule_about_calls_of_tools_that_there_are_not_is_named() -> None:
    catalog = build_catalog([listing("fs", "read")])
    given = [
        {"match": {"tool": ["fs", "fs:read"]}, "do": "deny"},
        {"match": {"tool": "fs:raed"}, "do": "ask"},
        {"match": {"tool": "fs:write*"}, "do": "allow"},
    ]
    settings = Settings.model_validate({"servers": {"fs": {"command": "x"}}, "rules": given})
    assert [(each.subject, each.what.split("'")[1]) for each in rules(started_case(catalog, settings))] == [
        ("rules.1.match.tool", "fs:raed"),
        ("rules.2.match.tool", "fs:write*"),
    ]


def test_settings_of_a_tool_that_its_server_does_not_have_are_named_with_the_nearest() -> None:
    catalog = build_catalog([listing("notes", "delete_note", "list_notes"), listing("files", "read_note")])
    tools = {
        "delete_note": {"effect": "destructive"},
        "delet_note": {"effect": "read"},
        "read_note": {"title": "Read"},
        "gone": {"enabled": False},
    }
    servers = {"notes": {"command": "x", "tools": tools}, "down": {"command": "x", "tools": {"any": {"title": "A"}}}}
    settings = Settings.model_validate({"servers": servers})
    wrong = [each for each in rules(started_case(catalog, settings)) if each.severity is Severity.WARNING]
    assert [(each.subject, each.what) for each in wrong] == [
        ("servers.notes.tools", "notes has no tool 'delet_note'"),
        ("servers.notes.tools", "notes has no tool 'read_note'"),
    ]
    assert wrong[0].fix == "write delete_note in servers.notes.tools"
