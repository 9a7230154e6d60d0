"""Doctor: settings that do not load, do nothing, or cannot be served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial

from pml_gateway.config.advice import SETTINGS_CHECKS, missing_commands
from pml_gateway.config.findings import Area, Check, Finding, SettingsCase, Severity
from pml_gateway.config.load import LoadedSettings, problems_of
from pml_gateway.config.problems import Problem
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError, InvalidInputError, ModelError, SecretError
from pml_gateway.mcp.transport import skill_folders
from pml_gateway.paths import Paths
from pml_gateway.policy.keys import ENDS_SOON_DAYS, KeyStore
from pml_gateway.policy.principal import PrincipalKind
from pml_gateway.policy.refusals import refusals
from pml_gateway.skills.folders import SkillFault, SkillReader
from pml_gateway.text import counted, nearest, quoted, span
from pml_gateway.types import Ranking
from pml_gateway.working_directory import WorkingDirectory


def skill_faults(settings: Settings, working_directory: WorkingDirectory) -> list[SkillFault]:
    """Return what keeps skills from being served, of all folders in a configuration. Reads them."""
    return [fault for _, _, faults in _read(settings, working_directory) for fault in faults]


def skills(case: SettingsCase) -> Iterator[Finding]:
    """Find folders and files that are not served as skills."""
    for server, count, faults in _read(case.settings, WorkingDirectory.here(case.environ)):
        for fault in faults:
            yield Finding(Area.SERVERS, Severity.WARNING, f"{server}: {fault.where}", fault.what, fault.fix)
        if not faults:
            yield Finding(Area.SERVERS, Severity.OK, server, counted(count, "skill"))


def _read(settings: Settings, working_directory: WorkingDirectory) -> Iterator[tuple[str, int, tuple[SkillFault, ...]]]:
    for server, definition in settings.servers.items():
        if not (definition.enabled and definition.skills):
            continue
        try:
            found = SkillReader(skill_folders(definition, working_directory)).read()
        except SecretError:
            # Told with all other references.
            continue
        yield server, len(found.skills), found.faults


@dataclass(frozen=True, slots=True)
class LoadedCase(SettingsCase):
    """Settings with their origins, and the names of the files of their gateway."""

    loaded: LoadedSettings
    paths: Paths
    identity: str


def broken(error: ConfigurationError) -> Iterator[Finding]:
    """Yield every problem of a configuration that does not load."""
    for problem in problems_of(error):
        yield _wrong(problem, error.hint)


def _wrong(problem: Problem, hint: str = "") -> Finding:
    where = ": ".join(part for part in (problem.location, problem.key) if part)
    what, separator, remedy = problem.message.partition("; ")
    fix = remedy if separator else f"edit {problem.location}" if problem.location else hint
    return Finding(Area.CONFIGURATION, Severity.ERROR, where, what, fix)


def in_force(case: LoadedCase) -> Iterator[Finding]:
    """Tell which settings are in force, and what of them was replaced because it means nothing."""
    settings, loaded = case.settings, case.loaded
    enabled = sum(definition.enabled for definition in settings.servers.values())
    files = ", ".join(str(path) for path in loaded.files) or "built-in defaults"
    mode = settings.gateway.tools_exposure
    yield Finding(Area.CONFIGURATION, Severity.OK, "", f"{files}: mode {mode}, {counted(enabled, 'server')}")
    if not settings.servers:
        yield Finding(Area.CONFIGURATION, Severity.ERROR, "servers", "no servers are configured", "pml init")
    yield from map(_wrong, loaded.problems)


def load_warnings(case: LoadedCase) -> Iterator[Finding]:
    """Repeat the warnings of loading, except for problems."""
    problems = {*map(str, case.loaded.problems)}
    yield from (warning for warning in case.loaded.warnings if str(warning) not in problems)


def refused(case: SettingsCase) -> Iterator[Finding]:
    """Find what would prevent `pml serve` from starting; references without a value are told with the others."""
    for key, error in refusals(case.settings, case.environ):
        if not isinstance(error, SecretError):
            what = error.message.removeprefix(key).strip()
            yield Finding(Area.CONFIGURATION, Severity.ERROR, key, what, error.hint)


def workflows(case: LoadedCase) -> Iterator[Finding]:
    """Find workflows that cannot be served, by the tools last seen."""
    if case.settings.workflows:
        # The server stack takes 0.7 s to import, which configurations without workflows never need.
        from pml_gateway.reports.workflows import workflow_findings

        yield from workflow_findings(case.settings, case.paths, case.identity)


def rules_about_calls(case: SettingsCase) -> Iterator[Finding]:
    """Find conditions of rules that mean nothing, and approvals that any program of the owner could give."""
    rules = case.settings.rules
    if any(rule.match.where is not None for rule in rules):
        # The server stack takes 0.7 s to import, which configurations without conditions never need.
        from pml_gateway.gateway.rule_decisions import condition

        for position, rule in enumerate(rules):
            try:
                if rule.match.where is not None:
                    condition(rule.match.where)
            except InvalidInputError as error:
                what = f"{error.message}, so that you are asked about every call that it could be about"
                yield Finding(Area.CONFIGURATION, Severity.ERROR, f"rules.{position}.match.where", what, error.hint)
    yield from _unknown_names(case)
    asks_owner = any(rule.preset == "careful" or (rule.do == "ask" and rule.answered_by == "owner") for rule in rules)
    if asks_owner and case.settings.approvals.secret is None:
        what = "any program that runs as you, such as an agent with a shell, can approve calls: pml approvals approve"
        yield Finding(Area.CONFIGURATION, Severity.NOTE, "approvals.secret", what, "pml approvals secret")


def _unknown_names(case: SettingsCase) -> Iterator[Finding]:
    """Find names in rules about calls that no server or client has, so that the rule decides about nothing."""
    settings = case.settings
    clients = [*settings.clients, *(kind.value for kind in PrincipalKind)]
    for position, rule in enumerate(settings.rules):
        named = {
            "server": (rule.match.server, [*settings.servers, "workflows"]),
            "client": (rule.match.client, clients),
        }
        for key, (names, known) in named.items():
            for name in names or ():
                if not any(fnmatchcase(each, name) for each in known):
                    place, what = f"rules.{position}.match.{key}", f"no {key} is named {name!r}"
                    near = nearest(name, known)
                    fix = f"write {near[0]} in {place}" if near else f"take it out of {place}"
                    yield Finding(Area.CONFIGURATION, Severity.WARNING, place, what, fix)


def model_library(case: SettingsCase) -> Iterator[Finding]:
    """Find a library that the embedding model needs, without loading either."""
    # numpy takes 0.1 s to import, which a search by words alone never needs.
    from pml_gateway.index.models import require_library

    if case.settings.search.ranking is not Ranking.LEXICAL:
        try:
            require_library(case.settings.search.model)
        except ModelError as error:
            what = f"{error.message}, and searches answer from words alone"
            yield Finding(Area.SEARCH, Severity.WARNING, "", what, error.hint)


def switched_off(case: SettingsCase) -> Iterator[Finding]:
    """Tell which servers are disabled, and of which every client gets one although their entries do not say so."""
    for name, definition in case.settings.servers.items():
        if not definition.enabled:
            fix = f"set servers.{name}.enabled: true to use it"
            yield Finding(Area.CONFIGURATION, Severity.NOTE, name, "is switched off", fix)
        elif definition.sessions is None and (kept := definition.keeps):
            what = f"keeps {kept}: every client gets one of its own (servers.{name}.sessions: shared changes that)"
            yield Finding(Area.CONFIGURATION, Severity.OK, name, what)


def keys_of_clients(case: LoadedCase) -> Iterator[Finding]:
    """Find clients without a key, and stored keys and tokens that have expired, end soon, or are of no client."""
    settings, store, now = case.settings, KeyStore(case.paths, case.identity), datetime.now(UTC)
    try:
        stored, tokens = store.all(), KeyStore(case.paths, case.identity, of_owner=True).all()
    except ConfigurationError as error:
        yield Finding(Area.CONFIGURATION, Severity.ERROR, "keys", error.message, error.hint)
        return
    warning = partial(Finding, Area.CONFIGURATION, Severity.WARNING)
    for key_id, key in stored.items():
        subject, again = f"clients.{key.client}", f"pml keys add {quoted(key.client)}"
        if key.client not in settings.clients:
            what = f"the key {key_id} is of a client that is not configured, and works again once it is"
            yield warning(subject, what, f"pml keys revoke {key_id}")
        elif key.has_expired(now):
            yield warning(subject, f"the key {key_id} has expired", f"{again}, and pml keys revoke {key_id}")
        elif key.has_expired(now + timedelta(days=ENDS_SOON_DAYS)) and key.expires_at is not None:
            what = f"the key {key_id} ends in {span((key.expires_at - now).total_seconds())}"
            yield warning(subject, what, f"{again}, give the client the new one, and pml keys revoke {key_id}")
    for key_id, token in tokens.items():
        if token.expires_at is not None and token.has_expired(now + timedelta(days=ENDS_SOON_DAYS)):
            left = (token.expires_at - now).total_seconds()
            what = f"your token {key_id} {f'ends in {span(left)}' if left > 0 else 'has expired'}"
            yield warning("keys", what, f"pml keys add --owner, and pml keys revoke {key_id}")
    having = {key.client for key in stored.values() if not key.has_expired(now)}
    for name, entry in settings.clients.items():
        if entry.key is None and name not in having:
            yield warning(f"clients.{name}", "has no key, so that nobody can ask as it", f"pml keys add {quoted(name)}")


VALIDATION_CHECKS: tuple[Check[LoadedCase], ...] = (
    load_warnings,
    *SETTINGS_CHECKS,
    workflows,
    skills,
    rules_about_calls,
)
"""Checks of the configuration's text, whatever is installed on this machine."""

CONFIGURATION_CHECKS: tuple[Check[LoadedCase], ...] = (
    in_force,
    *VALIDATION_CHECKS,
    refused,
    keys_of_clients,
    switched_off,
    missing_commands,
)
