"""Findings about the configuration."""

from __future__ import annotations

from pml_gateway.config.findings import SettingsCase, Severity
from pml_gateway.config.settings import Settings
from pml_gateway.reports.doctor.configuration import rules_about_calls, switched_off


def test_servers_that_every_client_gets_one_of_are_named_with_what_they_keep_and_are_no_fault() -> None:
    browser = {"command": "npx", "args": ["-y", "@playwright/mcp"]}
    servers = {"web": browser, "said": {**browser, "sessions": "shared"}, "files": {"command": "files"}}
    found = list(switched_off(SettingsCase(Settings.model_validate({"servers": servers}), {})))

    assert [(finding.subject, finding.severity) for finding in found] == [("web", Severity.OK)]
    assert "keeps a browser" in found[0].what
    assert "servers.web.sessions: shared" in found[0].what


def test_an_unknown_name_in_a_rule_about_calls_is_found_with_the_nearest_one() -> None:
    sections = {
        "servers": {"github": {"command": "x"}},
        "clients": {"ada": {"key": "${env:ADA}"}},
        "rules": [
            {"match": {"server": "githib"}, "do": "deny"},
            {"match": {"server": ["git*", "workflows"], "client": ["adda", "local", "a*"]}, "do": "deny"},
        ],
    }
    found = list(rules_about_calls(SettingsCase(Settings.model_validate(sections), {})))
    assert [(each.subject, each.what, each.fix) for each in found] == [
        ("rules.0.match.server", "no server is named 'githib'", "write github in rules.0.match.server"),
        ("rules.1.match.client", "no client is named 'adda'", "write ada in rules.1.match.client"),
    ]
