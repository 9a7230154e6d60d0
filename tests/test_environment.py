"""Environment variables that child processes inherit."""

from __future__ import annotations

from pml_gateway.environment import child_environment, gateway_environment

OF_A_CLIENT = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "http_proxy": "http://p:1",
    "TERM": "xterm",
    "NODE_EXTRA_CA_CERTS": "/ca.pem",
    "PML_HOME": "/pml",
    "PYTHONUTF8": "1",
    "HF_HOME": "/models",
    "HF_TOKEN": "secret",
    "GITHUB_TOKEN": "secret",
}


def test_a_server_inherits_what_any_program_needs_and_what_is_configured_for_it() -> None:
    found = child_environment(OF_A_CLIENT, {"TERM": "dumb", "API_KEY": "own"})
    assert found.keys() == {"PATH", "LC_ALL", "http_proxy", "TERM", "NODE_EXTRA_CA_CERTS", "API_KEY"}
    assert found["TERM"] == "dumb"


def test_a_gateway_inherits_its_own_settings_and_no_token_of_a_client() -> None:
    assert gateway_environment(OF_A_CLIENT).keys() == {
        "PATH",
        "LC_ALL",
        "http_proxy",
        "PML_HOME",
        "PYTHONUTF8",
        "HF_HOME",
    }
