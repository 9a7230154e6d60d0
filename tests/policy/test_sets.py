"""Sets and roles: what a client gets of several together, and who is given which."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pml_gateway.catalog.build import build_catalog
from pml_gateway.catalog.model import UpstreamListing
from pml_gateway.catalog.ownership import Ownership
from pml_gateway.config.settings import Settings
from pml_gateway.policy.principal import ANONYMOUS, LOCAL, OWNER, Principal, configured, current, local_client
from pml_gateway.policy.rules import EVERYTHING, HidingRule
from pml_gateway.policy.view import View
from pml_gateway.types import ExposureMode
from tests.support.scripted_server import ScriptedServer, tool
from tests.support.serving import serving

READ, WRITE = {"readOnlyHint": True}, {"readOnlyHint": False, "destructiveHint": False}
DESTROY = {"readOnlyHint": False}
TOOLS_OF_GIT = (
    tool("log", annotations=READ),
    tool("commit", annotations=WRITE),
    tool("reset", annotations=DESTROY),
)

CATALOG = build_catalog(
    [
        UpstreamListing("git", TOOLS_OF_GIT),
        UpstreamListing("mail", (tool("read", annotations=READ), tool("send", annotations=WRITE))),
        UpstreamListing("wiki", (tool("page"),)),
    ],
    ownership=Ownership(("git", "mail", "wiki")),
)
EVERY = [each.source for each in CATALOG.tools]
SETS: dict[str, dict[str, Any]] = {
    "code": {"include": ["git"], "mode": "hybrid", "intent": "write code"},
    "reading": {"effects": ["read"], "preset": "full_proxy"},
    "calm": {"include": [], "exclude": ["*:reset", "wiki"], "intent": "stay calm"},
    "mail": {"include": ["mail:*"]},
    "all": {},
}


def settings_with(client: Mapping[str, Any] | None = None, **sections: Any) -> Settings:
    given = {} if client is None else {"ada": {"key": "${env:ADA}", **client}}
    return Settings.model_validate({"sets": SETS, "clients": given, **sections})


def ada(client: Mapping[str, Any], **sections: Any) -> Principal:
    return configured(settings_with(client, **sections))["ada"]


def seen(principal: Principal | None) -> list[str]:
    assert principal is not None
    return [each.source for each in View(CATALOG, principal, ()).tools]


@pytest.mark.parametrize(
    ("client", "visible"),
    [
        ({}, EVERY),
        ({"sets": ["code"]}, ["git:log", "git:commit", "git:reset"]),
        ({"sets": ["reading"]}, ["git:log", "mail:read"]),
        ({"sets": ["code", "mail"]}, ["git:log", "git:commit", "git:reset", "mail:read", "mail:send"]),
        ({"sets": ["reading", "mail"]}, ["git:log", "mail:read", "mail:send"]),
        ({"sets": ["code", "calm"]}, ["git:log", "git:commit"]),
        ({"sets": ["calm"]}, []),
        ({"sets": ["mail"], "allow": ["wiki"]}, ["mail:read", "mail:send", "wiki:page"]),
        ({"sets": ["all"], "deny": ["git", "wiki"]}, ["mail:read", "mail:send"]),
        ({"deny": ["git"]}, ["mail:read", "mail:send", "wiki:page"]),
        ({"allow": []}, []),
        ({"roles": ["dev"]}, ["git:log", "git:commit", "git:reset", "mail:read"]),
        ({"roles": ["dev"], "sets": ["calm"]}, ["git:log", "git:commit", "mail:read"]),
    ],
)
def test_a_client_has_what_any_of_its_sets_includes_and_nothing_that_one_excludes(
    client: Mapping[str, Any], visible: list[str]
) -> None:
    assert seen(ada(client, roles={"dev": {"sets": ["code", "reading"]}})) == visible


def test_of_mode_intent_and_preset_the_first_counts_and_the_clients_own_is_first() -> None:
    both = ada({"sets": ["calm", "code", "reading"]})
    assert (both.mode, both.intent, both.rules.preset) == (ExposureMode.HYBRID, "stay calm", "full_proxy")
    assert ada({"sets": ["reading", "code"]}).mode is ExposureMode.FULL_PROXY
    assert ada({"sets": ["code"], "mode": "semantic", "intent": "x"}).mode is ExposureMode.SEMANTIC


def test_of_several_roles_the_strictest_counts() -> None:
    roles = {
        "a": {"sets": ["all"], "meta_tools": ["search_tools", "call_tool"], "direct_calls": "visible"},
        "b": {"sets": ["all"], "meta_tools": ["call_tool", "read_result"], "direct_calls": "listed"},
        "c": {"sets": ["all"]},
    }
    rules = ada({"roles": ["a", "b", "c"]}, roles=roles).rules
    assert (rules.meta_tools, rules.direct_calls) == (("call_tool",), "listed")
    assert ada({"roles": ["c"]}, roles=roles).rules == EVERYTHING
    assert ada({"roles": ["a", "c"]}, roles=roles).roles == ("a", "c")


def test_clients_with_the_same_rights_have_equal_rules_however_they_are_written() -> None:
    roles = {"dev": {"sets": ["code", "mail"]}}
    one = ada({"roles": ["dev"]}, roles=roles)
    assert one.rules == ada({"sets": ["mail", "code"]}).rules == ada({"allow": ["mail:*", "git"]}).rules
    assert ada({"sets": ["all", "code"]}).rules == EVERYTHING


def test_what_a_folder_gives_narrows_every_client_and_not_the_owner() -> None:
    sections = {"gateway": {"sets": ["code", "reading"]}}
    assert seen(ada({"sets": ["mail"]}, **sections)) == ["mail:read"]
    assert seen(ada({}, **sections)) == ["git:log", "git:commit", "git:reset", "mail:read"]
    without_keys = settings_with(**sections)
    for client in (LOCAL, ANONYMOUS):
        assert seen(current(client, without_keys)) == ["git:log", "git:commit", "git:reset", "mail:read"]
    assert seen(current(OWNER, without_keys)) == EVERY


def test_a_local_client_sees_everything_unless_it_was_started_with_sets_or_roles() -> None:
    settings = settings_with(roles={"dev": {"sets": ["mail", "reading"]}})
    assert current(LOCAL, settings) is LOCAL
    assert seen(current(local_client("a"), settings)) == EVERY
    assert seen(current(local_client("a", ("mail", "calm")), settings)) == ["mail:read", "mail:send"]
    assert seen(current(local_client("a", ("gone",)), settings)) == []
    both = current(local_client("a", ("calm", "dev", "code")), settings)
    assert seen(both) == ["git:log", "git:commit", "mail:read", "mail:send"]
    assert both is not None and (both.roles, both.intent) == (("dev",), "stay calm")


def test_the_name_of_a_client_narrows_what_it_sees_and_gives_nothing() -> None:
    gateway = {"sets_by_client_name": {"cursor*": ["code"], "*vscode": ["mail"]}}
    settings = settings_with(gateway=gateway)

    def named(name: str, *sets: str) -> list[str]:
        return seen(current(Principal("local:a", LOCAL.kind, sets=sets, client_name=name), settings))

    assert named("other") == named("") == EVERY
    assert named("Cursor 2") == ["git:log", "git:commit", "git:reset"]
    assert named("cursor-vscode") == ["git:log", "git:commit", "git:reset", "mail:read", "mail:send"]
    assert named("cursor", "mail") == []


def test_the_owner_is_told_which_rule_hides_a_tool() -> None:
    view = View(CATALOG, ada({"sets": ["reading", "calm"]}), ())
    hidden = {each.tool.source: (each.rule, each.pattern) for each in map(view.exclusion, CATALOG.tools) if each}
    assert hidden == {
        "git:commit": (HidingRule.EFFECT, None),
        "git:reset": (HidingRule.DENIED, "*:reset"),
        "mail:send": (HidingRule.EFFECT, None),
        "wiki:page": (HidingRule.DENIED, "wiki"),
    }
    only_mail = View(CATALOG, ada({"sets": ["mail"]}), ())
    exclusion = only_mail.exclusion(CATALOG.tools[0])
    assert exclusion is not None and exclusion.rule is HidingRule.NOT_ALLOWED


@pytest.mark.anyio
async def test_the_thousandth_client_of_a_role_is_answered_from_a_list_that_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = {}
    for number in range(1000):
        monkeypatch.setenv(f"KEY_{number}", f"key-of-client-{number:08}")
        clients[f"c{number}"] = {"key": f"${{env:KEY_{number}}}", "roles": ["dev" if number % 2 else "reader"]}
    sections: dict[str, Any] = {
        "sets": SETS,
        "roles": {"dev": {"sets": ["all"]}, "reader": {"sets": ["reading"]}},
        "clients": clients,
        "gateway": {"tools_exposure": "full_proxy"},
    }
    async with serving(tmp_path, {"git": ScriptedServer(list(TOOLS_OF_GIT))}, **sections) as served:
        await served.gateway.refresh(30)
        for number in (0, 1, 2, 3, 500, 501, 998, 999):
            listed = ["git__commit", "git__log", "git__reset"] if number % 2 else ["git__log"]
            assert [n for n in await served.names(key=f"key-of-client-{number:08}") if n.startswith("git")] == listed
            # One for each role: a list that is made is kept.
            lists = served.gateway.state.lists
            assert len(lists.whole) == min(number + 1, 2)
