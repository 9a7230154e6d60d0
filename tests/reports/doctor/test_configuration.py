"""Findings about the configuration."""

from __future__ import annotations

from pml_gateway.config.findings import SettingsCase, Severity
from pml_gateway.config.settings import Settings
from pml_gateway.reports.doctor.configuration import switched_off


def test_servers_that_every_client_gets_one_of_are_named_with_what_they_keep_and_are_no_fault() -> None:
    browser = {"command": "npx", "args": ["-y", "@playwright/mcp"]}
    servers = {"web": browser, "said": {**browser, "sessions": "shared"}, "files": {"command": "files"}}
    found = list(switched_off(SettingsCase(Settings.model_validate({"servers": servers}), {})))

    assert [(finding.subject, finding.severity) for finding in found] == [("web", Severity.OK)]
    assert "keeps a browser" in found[0].what
    assert "servers.web.sessions: shared" in found[0].what
