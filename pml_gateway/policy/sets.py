"""Sets: the rights, mode and intent that a client gets from all its sets and roles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pml_gateway.config.presets import load_preset
from pml_gateway.config.settings import ClientSettings, RoleSettings, SetSettings, Settings
from pml_gateway.policy.rules import EVERYTHING, Grant, Rules
from pml_gateway.types import Effect, ExposureMode

NOTHING = SetSettings(include=())
"""Stands for a set that was removed from the configuration while a client has it; it gives nothing."""

GivenSets = Mapping[str, SetSettings]
"""Sets by their key in the configuration; a client has what any of them includes, and nothing that one excludes."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights, mode and intent that follow from sets and roles."""

    rules: Rules = EVERYTHING
    mode: ExposureMode | None = None
    intent: str | None = None
    roles: tuple[str, ...] = ()


def given_sets(
    settings: Settings, client: str | None, sets: Iterable[str] = (), client_name: str = ""
) -> list[GivenSets]:
    """Return the sets of a client, the most specific first; each group narrows what the others give.

    Args:
        settings: those of the gateway.
        client: its entry of `clients:`; None if it has none.
        sets: the names of those, and of the roles, that it was started with.
        client_name: the name that it gives itself.
    """
    own: dict[str, SetSettings] = {}
    if client is not None:
        own[f"clients.{client}"] = _unnamed(settings.clients[client])
    roles, given = roles_of(settings, client, sets), _given(settings, client, sets)
    own |= _named(settings, (each for name in given for each in (roles[name].sets if name in roles else (name,))))
    folded = client_name.casefold()
    by_name = [
        name
        for pattern, names in settings.gateway.sets_by_client_name.items()
        if client_name and fnmatchcase(folded, pattern.casefold())
        for name in names
    ]
    groups = (own, _named(settings, settings.gateway.sets), _named(settings, by_name))
    return [group for group in groups if group]


def rights_of(groups: Sequence[GivenSets], roles: Mapping[str, RoleSettings]) -> Rights:
    """Return what sets and roles give together: denials win, of mode, preset and intent the first counts."""
    every = [each for group in groups for each in group.values()]
    modes = (each.mode or _mode_of(each.preset) for each in every)
    rules = Rules(
        tuple(dict.fromkeys(_grants(group) for group in groups)) or EVERYTHING.grants,
        tuple(sorted({entry for each in every for entry in each.exclude})),
        _meta_tools(roles.values()),
        # The strictest one wins, which is also the first in the alphabet.
        min((role.direct_calls for role in roles.values() if role.direct_calls is not None), default=None),
        next((each.preset for each in every if each.preset is not None), None),
    )
    return Rights(
        rules,
        next((mode for mode in modes if mode is not None), None),
        next((each.intent for each in every if each.intent), None),
        tuple(roles),
    )


def roles_of(settings: Settings, client: str | None, sets: Iterable[str] = ()) -> dict[str, RoleSettings]:
    """Return the roles of a client by name; the arguments are those of `given_sets`."""
    return {name: settings.roles[name] for name in _given(settings, client, sets) if name in settings.roles}


def _given(settings: Settings, client: str | None, sets: Iterable[str]) -> Iterable[str]:
    """Return the names of the sets and roles that are given to one client; no set has the name of a role."""
    return sets if client is None else (*settings.clients[client].roles, *settings.clients[client].sets)


def _unnamed(entry: ClientSettings) -> SetSettings:
    """Return `allow`, `deny`, `mode` and `intent` of a client as a set."""
    everything = () if entry.sets or entry.roles else ("*",)
    include = everything if entry.allow is None else entry.allow
    return SetSettings(include=include, exclude=entry.deny, mode=entry.mode, intent=entry.intent)


def _named(settings: Settings, names: Iterable[str]) -> dict[str, SetSettings]:
    return {f"sets.{name}": settings.sets.get(name, NOTHING) for name in names}


def _grants(group: GivenSets) -> tuple[Grant, ...]:
    """Return what the sets of a group include; equal for groups that give the same."""
    by_effects: dict[tuple[Effect, ...], set[str]] = {}
    for each in group.values():
        by_effects.setdefault(tuple(sorted(set(each.effects))), set()).update(each.include)
    if "*" in by_effects.get((), ()):
        return (Grant(),)
    return tuple(Grant(tuple(sorted(entries)), effects) for effects, entries in sorted(by_effects.items()) if entries)


def _meta_tools(roles: Iterable[RoleSettings]) -> tuple[str, ...] | None:
    named = [role.meta_tools for role in roles if role.meta_tools is not None]
    return tuple(name for name in named[0] if all(name in each for each in named)) if named else None


def _mode_of(preset: str | None) -> ExposureMode | None:
    return None if preset is None else ExposureMode(load_preset(preset).values["gateway"]["tools_exposure"])
