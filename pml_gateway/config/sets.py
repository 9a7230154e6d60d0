"""Names of sets and roles: those in settings, and those that a client is started with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import filter as matching

from pml_gateway.config.layers import KeyPath
from pml_gateway.config.settings import Settings
from pml_gateway.errors import UsageError
from pml_gateway.text import suggestion

VARIABLE = "PML_SET"
"""Names the sets and roles of a client that is started without `--set`."""

MAX_SHOWN = 60
"""Characters of an unknown name that a message repeats."""


def named_sets(option: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the sets and roles that a client over stdio is started with."""
    given = environ.get(VARIABLE) if option is None else option
    if given is None:
        return ()
    # An empty name, as of a variable that is not set, must not give everything. Nothing has it: it is refused.
    return tuple(dict.fromkeys(name for each in given.split(",") if (name := each.strip()))) or (given,)


def check_sets(names: Iterable[str], settings: Settings) -> None:
    """Refuse names that neither a set nor a role has.

    Raises:
        UsageError: a name is unknown; the message has the nearest known one.
    """
    known = [*settings.sets, *settings.roles]
    for name in names:
        if name not in known:
            raise UsageError(f"--set or {VARIABLE}: {_unknown('set or role', name, known)}", hint="see: pml sets list")


def unknown_names(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key of each set or role that is unknown or ambiguous, with an error message."""
    sets: dict[KeyPath, tuple[str, ...]] = {("gateway", "sets"): settings.gateway.sets}
    for pattern, names in settings.gateway.sets_by_client_name.items():
        sets["gateway", "sets_by_client_name", pattern] = names
    for name, role in settings.roles.items():
        sets["roles", name, "sets"] = role.sets
        if name in settings.sets:
            yield ("roles", name), "a set has this name too, and --set takes both; rename one of them"
    for name, client in settings.clients.items():
        sets["clients", name, "sets"] = client.sets
        for each in client.roles:
            if each not in settings.roles:
                yield ("clients", name, "roles"), _unknown("role", each, settings.roles)
    for position, rule in enumerate(settings.rules):
        for each in rule.match.role or ():
            if not matching(settings.roles, each):
                yield ("rules", position, "match", "role"), _unknown("role", each, settings.roles)
    for path, names in sets.items():
        yield from ((path, _unknown("set", name, settings.sets)) for name in names if name not in settings.sets)


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    return f"no {kind} {name[:MAX_SHOWN]!r} (known are {', '.join(known) or 'none'}){suggestion(name, known)}"
