"""Names of sets and roles that cannot be meant are errors when the configuration is loaded."""

from __future__ import annotations

import pytest

from pml_gateway.errors import ConfigurationError
from tests.config.workspace import Workspace

BASE = "sets: {work: {}}\nroles: {developer: {sets: [work]}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clients: {ada: {key: '${env:A}', sets: [wrok]}}", "clients.ada.sets: no set 'wrok'"),
        ("clients: {ada: {key: '${env:A}', roles: [develper]}}", "clients.ada.roles: no role 'develper'"),
        ("gateway: {sets: [wrok]}", "gateway.sets: no set 'wrok'"),
        ("rules: [{match: {role: develper}, do: deny}]", "rules[0].match.role: no role 'develper'"),
        ("rules: [{do: allow}, {match: {role: [developer, 'admin*']}, do: ask}]", "rules[1].match.role: no role"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_known_ones(workspace: Workspace, text: str, said: str) -> None:
    workspace.user(f"{BASE}{text}\n")
    with pytest.raises(ConfigurationError) as caught:
        workspace.load()
    assert said in str(caught.value) and "known are" in str(caught.value)


def test_a_role_has_another_name_than_every_set(workspace: Workspace) -> None:
    workspace.user("sets: {work: {}}\nroles: {work: {sets: [work]}}\n")
    with pytest.raises(ConfigurationError, match=r"roles\.work: a set has this name too"):
        workspace.load()


def test_rules_name_roles_and_patterns_of_them(workspace: Workspace) -> None:
    workspace.user(f"{BASE}rules: [{{match: {{role: [developer, 'dev*']}}, do: deny}}]\n")
    assert workspace.load().settings.rules[0].match.role == ("developer", "dev*")
