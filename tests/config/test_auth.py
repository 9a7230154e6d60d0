"""`auth:` of a server: its spellings, its mistakes, and what is shown of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from pml_gateway.config.advice import literal_secrets, unresolved_references
from pml_gateway.config.findings import SettingsCase
from pml_gateway.config.masked import masked_settings
from pml_gateway.config.servers import AuthDefinition, AuthKind, UpstreamDefinition
from pml_gateway.config.settings import Settings

URL = "https://example.com/mcp"


def auth_of(**entry: Any) -> AuthDefinition | None:
    return UpstreamDefinition.model_validate({"url": URL, **entry}).auth


def test_the_word_alone_is_enough() -> None:
    assert auth_of(auth="oauth") == AuthDefinition()
    assert auth_of() is None


@pytest.mark.parametrize("entry", [{"auth": "none"}, {"auth": False}, {"oauth": False}])
def test_a_login_can_be_switched_off(entry: dict[str, Any]) -> None:
    auth = auth_of(**entry)
    assert auth is not None
    assert auth.type is AuthKind.NONE


@pytest.mark.parametrize(
    "entry",
    [
        {"auth": {"client_id": "id", "client_secret": "${env:S}", "scopes": ["a", "b"]}},
        {"auth": {"CLIENT_ID": "id", "CLIENT_SECRET": "${env:S}", "scopes": ["a", "b"]}},
        {"oauth": {"clientId": "id", "clientSecret": "${env:S}", "scope": "a b", "enabled": True}},
    ],
)
def test_other_clients_spellings_mean_the_same(entry: dict[str, Any]) -> None:
    assert auth_of(**entry) == AuthDefinition(client_id="id", client_secret="${env:S}", scopes=("a", "b"))


def test_a_callback_port_is_an_address_on_this_machine() -> None:
    auth = auth_of(oauth={"clientId": "id", "callbackPort": 8080})
    assert auth is not None
    assert auth.redirect_uri == "http://localhost:8080/callback"


def test_what_other_clients_write_for_stdio_servers_or_beside_a_header_is_no_error() -> None:
    assert UpstreamDefinition.model_validate({"command": "x", "oauth": {"clientId": "id"}}).auth is None
    assert auth_of(oauth={"clientId": "id"}, headers={"authorization": "Bearer x"}) is None


def test_variables_that_hold_headers_become_references() -> None:
    entry = {"url": URL, "bearer_token_env_var": "TOKEN", "env_http_headers": {"X-Team": "TEAM"}}
    expected = {"Authorization": "Bearer ${env:TOKEN}", "X-Team": "${env:TEAM}"}
    assert UpstreamDefinition.model_validate(entry).headers == expected
    assert UpstreamDefinition.model_validate({**entry, "http_headers": {"X-A": "1"}}).headers == {
        **expected,
        "X-A": "1",
    }


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"auth": "oauht"}, "'oauth', 'client_credentials' or 'none'"),
        ({"auth": "oauth", "headers": {"AUTHORIZATION": "x"}}, "not both"),
        ({"auth": {"client_secret": "${env:S}"}}, "needs a `client_id`"),
        ({"auth": {"client_id": "a", "client_metadata_url": "https://a/b"}}, "not both"),
        ({"auth": {"type": "client_credentials", "client_id": "a"}}, "also needs client_secret, issuer"),
        ({"auth": {"issuer": "https://a"}}, "type oauth takes no issuer"),
        ({"auth": {"type": "none", "client_id": "a"}}, "type none takes no client_id"),
        ({"auth": {"redirect_uri": "https://evil.example:1/x"}}, "must be on this machine"),
        ({"auth": {"redirect_uri": "http://localhost/x"}}, "with a port"),
        ({"auth": {"redirect_uri": "http://localhost:x/x"}}, "with a port"),
        ({"auth": {"client_metadata_url": "http://a/b"}}, "must be an https URL"),
    ],
)
def test_mistakes_name_the_key_and_the_remedy(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        auth_of(**entry)


def test_a_stdio_server_has_no_login() -> None:
    with pytest.raises(ValidationError, match="secrets in `env`"):
        UpstreamDefinition.model_validate({"command": "x", "auth": "oauth"})


def test_a_client_secret_is_masked_and_advised_against_in_the_file() -> None:
    entry = {"url": URL, "auth": {"client_id": "id", "client_secret": "hunter2hunter2"}}
    settings = Settings.model_validate({"servers": {"remote": entry}})
    assert "hunter2" not in json.dumps(masked_settings(settings))
    told = [finding.what for finding in literal_secrets(SettingsCase(settings, {}))]
    assert any(what.startswith("servers.remote.auth.client_secret") for what in told)
    missing = {"url": URL, "auth": {"client_id": "id", "client_secret": "${env:NOT_SET_ANYWHERE}"}}
    settings = Settings.model_validate({"servers": {"remote": missing}})
    assert any("NOT_SET_ANYWHERE" in each.what for each in unresolved_references(SettingsCase(settings, {})))
    assert masked_settings(settings)["servers"]["remote"]["auth"]["client_secret"] == "${env:NOT_SET_ANYWHERE}"
