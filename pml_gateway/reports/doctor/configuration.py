"""Doctor: settings that do not load, do nothing, stand for nothing, or cannot start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pml_gateway.config.advice import (
    command_obstacles,
    foreign_variables,
    intent_sources,
    literal_secrets,
    overridden,
    unreadable_env_files,
    unresolved,
)
from pml_gateway.config.load import LoadedSettings, problems_of
from pml_gateway.config.problems import Problem
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ConfigurationError
from pml_gateway.policy.refusals import refusals
from pml_gateway.reports.doctor.finding import Area, Finding, Severity, from_error, from_text
from pml_gateway.text import counted

INTENT_FIX = "pml config --wizard, or set `gateway: {intent: ...}` in the project's .pml.yaml"


def broken(error: ConfigurationError) -> Iterator[Finding]:
    """Every problem of a configuration that does not load."""
    for problem in problems_of(error):
        yield _wrong(problem, error.hint)


def _wrong(problem: Problem, hint: str = "") -> Finding:
    where = ": ".join(part for part in (problem.location, problem.key) if part)
    what, separator, remedy = problem.message.partition("; ")
    fix = remedy if separator else f"edit {problem.location}" if problem.location else hint
    return Finding(Area.CONFIGURATION, Severity.ERROR, where, what, fix)


def configuration(loaded: LoadedSettings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the settings in force, and what about them is not as their author expects."""
    settings = loaded.settings
    enabled = sum(definition.enabled for definition in settings.servers.values())
    files = ", ".join(str(path) for path in loaded.files) or "built-in defaults"
    mode = settings.gateway.tools_exposure
    yield Finding(Area.CONFIGURATION, Severity.OK, "", f"{files}: mode {mode}, {counted(enabled, 'server')}")
    if not settings.servers:
        yield Finding(Area.CONFIGURATION, Severity.ERROR, "servers", "no servers are configured", "pml init")
    about_intent = set(intent_sources(settings))
    yield from map(_wrong, loaded.problems)
    told = {*about_intent, *map(str, loaded.problems)}
    for warning in loaded.warnings:
        if warning not in told:
            yield from_text(Area.CONFIGURATION, Severity.WARNING, warning)
    for warning in (*literal_secrets(settings), *foreign_variables(settings)):
        yield from_text(Area.CONFIGURATION, Severity.WARNING, warning)
    yield from _refused(settings, environ)
    for name, definition in settings.servers.items():
        if not definition.enabled:
            fix = f"set servers.{name}.enabled: true to use it"
            yield Finding(Area.CONFIGURATION, Severity.NOTE, name, "is switched off", fix)
    yield from _kept_apart(settings)
    yield from (_about_intent(warning) for warning in about_intent)


def _kept_apart(settings: Settings) -> Iterator[Finding]:
    """Servers of which every client gets one of its own, where their entries do not say so themselves."""
    for name, definition in settings.servers.items():
        if definition.enabled and definition.sessions is None and (kept := definition.keeps):
            what = f"keeps {kept}: every client gets one of its own (servers.{name}.sessions: shared changes that)"
            yield Finding(Area.CONFIGURATION, Severity.OK, name, what)


def _about_intent(warning: str) -> Finding:
    return Finding(Area.INTENT, Severity.WARNING, "", warning.rpartition("; ")[0], INTENT_FIX)


def _refused(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Return what would prevent `pml serve` from starting."""
    for key, error in refusals(settings, environ):
        yield Finding(Area.CONFIGURATION, Severity.ERROR, key, error.message.removeprefix(f"{key} "), error.hint)


def secrets(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check for references without a value; those of clients and stores prevent the gateway from starting."""
    missing = [(key, error) for key, error in unresolved(settings, environ) if key.startswith("servers.")]
    for key, error in missing:
        yield from_error(Area.SECRETS, error, key)
    files = unreadable_env_files(settings, environ)
    for warning in files:
        key, _, what = warning.partition(": ")
        yield Finding(Area.SECRETS, Severity.ERROR, key, what, f"correct {key}, or the file's owner and mode")
    for name, keys in overridden(settings, environ):
        what = f"the environment has another value than secrets.env, which is used for {', '.join(keys)}"
        fix = f"unset {name}, or if its value is the right one, store it: pml secrets set {name}"
        yield Finding(Area.SECRETS, Severity.WARNING, name, what, fix)
    if not missing and not files:
        yield Finding(Area.SECRETS, Severity.OK, "", "every reference of the servers has a value")


def commands(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Commands of enabled servers that are not there."""
    looked_at = found = 0
    for name, definition in settings.servers.items():
        obstacles = command_obstacles(name, definition, environ)
        if obstacles is None:
            continue
        looked_at += 1
        for obstacle in obstacles:
            found += 1
            yield Finding(Area.COMMANDS, Severity.ERROR, name, obstacle.what, obstacle.remedy)
    if looked_at and not found:
        yield Finding(Area.COMMANDS, Severity.OK, "", f"{counted(looked_at, 'command')} of stdio servers found")


def server_of(finding: Finding) -> str | None:
    """Return the server that a finding keeps from starting, if it is about one."""
    if finding.severity is not Severity.ERROR or finding.area not in (Area.SECRETS, Area.COMMANDS):
        return None
    if finding.area is Area.COMMANDS:
        return finding.subject
    return finding.subject.removeprefix("servers.").rpartition(".")[0].split(".")[0]
