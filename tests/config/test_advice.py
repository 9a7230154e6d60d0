from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.config.advice import (
    confusable_ids,
    intent_sources,
    literal_secrets,
    missing_commands,
    unresolved_references,
    without_effect,
)
from pml_gateway.config.findings import Check, SettingsCase, run_checks
from pml_gateway.config.settings import Settings

KEY = "${env:KEY}"


def found(check: Check[SettingsCase], settings: dict[str, Any], environ: Mapping[str, str] = os.environ) -> list[str]:
    """The faults that one check finds."""
    case = SettingsCase(Settings.model_validate(settings), environ)
    return [str(finding) for finding in run_checks([check], case) if finding.is_fault]


@pytest.mark.parametrize(
    ("gateway", "clients", "expected"),
    [
        ({"tools_exposure": "semantic"}, {}, "sees only the meta-tools;"),
        ({"tools_exposure": "hybrid"}, {}, "sees only the meta-tools;"),
        (
            {"tools_exposure": "hybrid", "hybrid": {"whitelisted_tools": ["a"]}},
            {},
            "sees only the meta-tools and the whitelisted tools;",
        ),
        (
            {"tools_exposure": "hybrid", "hybrid": {"whitelisted_tools": ["a"], "fallback": "usage"}},
            {},
            "sees only the meta-tools, the whitelisted tools and the most used tools;",
        ),
        ({"tools_exposure": "hybrid", "hybrid": {"expose_meta_tools": False}}, {}, "sees only an empty list;"),
        ({"tools_exposure": "semantic"}, {"ci": {"key": KEY}}, "sees only the meta-tools;"),
        ({}, {"ci": {"key": KEY, "mode": "hybrid"}}, "clients ci pin a mode"),
    ],
)
def test_a_mode_that_selects_by_intent_and_has_none_is_pointed_out(
    gateway: dict[str, Any], clients: dict[str, Any], expected: str
) -> None:
    (warning,) = found(intent_sources, {"gateway": gateway, "clients": clients})

    assert expected in warning
    assert "gateway.intent" in warning


@pytest.mark.parametrize(
    ("gateway", "clients"),
    [
        ({}, {}),
        ({"tools_exposure": "full_proxy"}, {}),
        ({"tools_exposure": "semantic", "intent": "x"}, {"ci": {"key": KEY, "mode": "semantic"}}),
        ({"tools_exposure": "hybrid", "hybrid": {"apply_semantic_filter": False}}, {}),
        ({"tools_exposure": "hybrid", "hybrid": {"expose_underlying_tools": False}}, {}),
        ({"tools_exposure": "semantic"}, {"ci": {"key": KEY, "intent": "triage"}}),
        ({"tools_exposure": "semantic", "follow": "searches"}, {}),
    ],
)
def test_there_is_nothing_to_say_where_an_intent_exists_or_none_is_needed(
    gateway: dict[str, Any], clients: dict[str, Any]
) -> None:
    assert found(intent_sources, {"gateway": gateway, "clients": clients}) == []


def test_references_that_stand_for_nothing_are_named_where_they_are_used() -> None:
    warnings = found(
        unresolved_references,
        {
            "servers": {
                "a": {"command": "${env:BIN}", "args": ["--key", "${env:GONE}"], "env": {"T": "${env:SET}"}},
                "off": {"url": "https://x.test/${env:GONE}", "enabled": False},
            },
            "clients": {"ci": {"key": "${env:GONE}"}},
            "storage": {"url": "redis://${env:GONE}@host", "key": "${env:GONE}"},
        },
        {"BIN": "npx", "SET": "hunter2"},
    )

    assert {warning.partition(": ")[0] for warning in warnings} == {
        "servers.a.args[1]",
        "clients.ci.key",
        "storage.url",
    }
    assert all("GONE is not set" in warning for warning in warnings)


def test_literal_credentials_are_pointed_out_without_being_repeated() -> None:
    warnings = found(
        literal_secrets,
        {
            "servers": {
                "a": {"command": "npx", "env": {"API_TOKEN": "hunter2", "LOG_LEVEL": "debug", "KEY": "${env:K}"}},
                "b": {"url": "https://x.test", "headers": {"Authorization": "Bearer hunter2"}},
            },
            "storage": {"url": "redis://me:hunter2@host/0"},
        },
    )

    assert [warning.partition(" ")[0] for warning in warnings] == [
        "servers.a.env.API_TOKEN",
        "servers.b.headers.Authorization",
        "storage.url",
    ]
    assert "hunter2" not in repr(warnings)


def test_a_password_before_a_host_by_reference_is_a_literal_credential() -> None:
    assert len(found(literal_secrets, {"storage": {"url": "redis://me:hunter2@${env:HOST}"}})) == 1


@pytest.mark.parametrize("url", ["redis://host/0", "redis://me:${env:K}@host", "${env:URL}"])
def test_a_url_without_a_password_of_its_own_is_no_literal_credential(url: str) -> None:
    assert found(literal_secrets, {"storage": {"url": url}}) == []


@pytest.mark.parametrize(
    ("servers", "warned"),
    [
        (("github", "fs", "my server"), []),
        (("my.server",), ["'.' stands between"]),
        (("a", "a__b"), ["begin with a as well"]),
        (("my server", "my_server"), ["as they write servers.my server"]),
        (("fs", "FS"), ["as they write servers.fs"]),
    ],
)
def test_ids_that_cannot_be_told_apart_in_names_are_pointed_out(servers: tuple[str, ...], warned: list[str]) -> None:
    warnings = found(confusable_ids, {"servers": {server: {"command": "x"} for server in servers}})
    assert len(warnings) == len(warned)
    assert all(part in warning for part, warning in zip(warned, warnings, strict=True))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("githb-mcp-server", "github-mcp-server"),
        ("tesseratc", "tesseract"),
        ("pythn3", "python3"),
        # Near in letters, and something else: short names, other beginnings, more than a slip.
        ("cmd", ""),
        ("xesseract", ""),
        ("tessarat", ""),
    ],
)
def test_a_command_is_proposed_for_one_that_is_not_there_only_where_it_is_near(
    tmp_path: Path, typed: str, meant: str
) -> None:
    for name in ("jcmd", "tesseract", "github-mcp-server", "python3"):
        (tmp_path / name).touch(0o755)
    settings = Settings.model_validate({"servers": {"x": {"command": typed}}})
    (obstacle,) = missing_commands(SettingsCase(settings, {"PATH": str(tmp_path)}))
    assert ("did you mean" in obstacle.fix) is bool(meant)
    assert not meant or obstacle.fix == f"did you mean {meant}? set servers.x.command: {meant}"


def test_arguments_that_stand_in_the_command_are_told_where_they_belong(tmp_path: Path) -> None:
    (tmp_path / "npx").touch(0o755)
    for typed, is_told in (("npx -y some-server", True), ("nothing -y some-server", False)):
        settings = Settings.model_validate({"servers": {"x": {"command": typed}}})
        (obstacle,) = missing_commands(SettingsCase(settings, {"PATH": str(tmp_path)}))
        assert ("servers.x.command: npx, and the rest to servers.x.args" in obstacle.fix) is is_told


def test_references_that_no_client_could_read_are_warned_about() -> None:
    without = {"meta_tools": ["search_tools", "call_tool"]}
    for gateway, references, is_told in (
        ({}, {"mode": "all"}, False),
        (without, {}, False),
        (without, {"mode": "all"}, True),
    ):
        told = found(without_effect, {"gateway": gateway, "references": references})
        assert any("read_result" in warning for warning in told) == is_told
