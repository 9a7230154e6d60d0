"""Which definition the owner means by a name, whatever servers call theirs."""

from __future__ import annotations

from typing import Any

from pml_gateway.config.settings import Settings
from pml_gateway.trust.identity import SERVER, digest, identity_of
from pml_gateway.trust.pins import HeldForm, HoldReason, Pins, ServerPins
from pml_gateway.trust.review import cases, named
from pml_gateway.trust.verdict import SubjectKind

SERVERS = Settings.model_validate({"servers": {each: {"command": each} for each in ("github", "evil")}}).servers


def waiting(server: str, *names: str) -> ServerPins:
    held: dict[Any, tuple[HeldForm, ...]] = {}
    for name in names:
        definition = {"name": name}
        key = (SubjectKind.TOOL, name) if name else SERVER
        held[key] = (HeldForm(definition, digest(definition), HoldReason.CHANGED, 1.0),)
    return ServerPins(server, identity_of(SERVERS[server]).what, held=held)


def meant(name: str, *pins: ServerPins) -> list[str]:
    known = cases(Pins({(each.server, each.what): each for each in pins}), SERVERS)
    return [f"{case.server}|{case.key[1]}" for case in named(known, name)]


def test_a_hash_means_the_form_that_has_it_and_not_a_tool_that_is_called_so() -> None:
    shown = f"note@{digest({'name': 'note'})[:12]}"
    pins = waiting("evil", "note", shown)
    assert meant(f"evil:{shown}", pins) == ["evil|note"]
    assert meant(shown, pins) == ["evil|note"]
    assert meant(f"evil:{shown}@{digest({'name': shown})[:12]}", pins) == [f"evil|{shown}"]
    assert meant("evil:a@b", waiting("evil", "a@b", "a")) == ["evil|a@b"]


def test_a_tool_that_is_called_as_anothers_is_not_taken_for_it() -> None:
    pins = waiting("evil", "github:push", "github__push", "plain")
    assert meant("github:push", pins, waiting("github", "push")) == ["github|push"]
    for name in ("github:push", "github__push"):
        assert meant(name, pins) == [], "what is gone is nobody else's"
        assert meant(f"evil:{name}", pins) == [f"evil|{name}"]
    assert meant("plain", pins) == ["evil|plain"]
    assert meant("github", waiting("evil", "github"), waiting("github", "")) == ["github|"]


def test_a_name_that_is_written_as_another_one_is_shown_means_both() -> None:
    assert meant("evil:a\\nb", waiting("evil", "a\nb", "a\\nb")) == ["evil|a\nb", "evil|a\\nb"]
