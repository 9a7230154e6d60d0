"""Single settings: values are read from text as their key takes them, and tried on settings before they are written."""

from __future__ import annotations

from typing import Any

import pytest

from pml_gateway.config.settings import Settings
from pml_gateway.config.single_settings import read_setting, read_settings, setting_tree, with_single_settings
from pml_gateway.errors import ConfigurationError, UsageError


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("gateway.hybrid.semantic_threshold", "0.5", 0.5),
        ("gateway.hybrid.max_tokens", "null", None),
        ("gateway.hybrid.expose_meta_tools", "false", False),
        ("gateway.follow", "off", "off"),
        ("gateway.intent", "triage: issues", "triage: issues"),
        ("gateway.intent", "5", "5"),
        ("gateway.intent", "null", None),
        ("gateway.blacklisted_tools", "a:*, b__c", ["a:*", "b__c"]),
        ("gateway.blacklisted_tools", "a\nb", ["a", "b"]),
        ("gateway.blacklisted_tools", "[a, b]", ["a", "b"]),
        ("gateway.blacklisted_tools", "", []),
        ("clients.bot.allow", "a, b", ["a", "b"]),
        ("http.max_body_bytes", "4MiB", "4MiB"),
    ],
)
def test_a_text_is_read_as_its_setting_takes_it(key: str, text: str, value: Any) -> None:
    assert read_setting(key, text) == value


def test_a_second_key_does_not_hide_in_a_value() -> None:
    assert read_setting("gateway.hybrid.max_tokens", "1\nother: 2") == "1\nother: 2"


def test_values_are_laid_over_the_settings_and_checked() -> None:
    settings = Settings.model_validate({"clients": {"bot": {"key": "${env:KEY}"}}, "http": {"port": 9000}})
    values = {"gateway.hybrid.semantic_threshold": 0.2, "clients.bot.deny": ["a"]}
    changed = with_single_settings(settings, values)
    assert changed.gateway.hybrid.semantic_threshold == 0.2
    assert (changed.clients["bot"].key, changed.clients["bot"].deny) == ("${env:KEY}", ("a",))
    assert changed.http.port == 9000
    assert settings.gateway.hybrid.semantic_threshold == 0.6
    with pytest.raises(ConfigurationError, match=r"semantic_threshold: 7.* 1"):
        with_single_settings(settings, {"gateway.hybrid.semantic_threshold": 7})
    with pytest.raises(ConfigurationError, match="no set 'nope'"):
        with_single_settings(settings, {"gateway.sets": ["nope"]})
    with pytest.raises(UsageError, match="does not decide about lists"):
        with_single_settings(settings, {"http.port": 1})


@pytest.mark.parametrize("key", ["gateway.hybrid.semantic_treshold", "nope", "", "gateway..intent", "gateway.intent.x"])
def test_an_unknown_setting_is_named(key: str) -> None:
    with pytest.raises(UsageError, match="no setting"):
        setting_tree(key, 1)


def test_a_pair_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        read_settings(["gateway.intent"], "--try")
    assert read_settings(["gateway.intent = a=b"], "--try") == {"gateway.intent": "a=b"}
