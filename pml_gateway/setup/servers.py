"""Changes of the configured servers: what a command may name, the new text of the file, and what else is kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pml_gateway.catalog.manifest import Manifest, ManifestEntry, ManifestFile
from pml_gateway.clients.discover import ClientFile
from pml_gateway.clients.importing import ImportPlan, plan_import, safe_name
from pml_gateway.clients.places import Surroundings
from pml_gateway.clients.removed import RemovedServers
from pml_gateway.config.advice import variable_users
from pml_gateway.config.document import parse
from pml_gateway.config.edits.edit import set_values
from pml_gateway.config.edits.entries import SECTIONS, section_of, with_new_name, with_texts, without_entry
from pml_gateway.config.edits.rename import Renaming
from pml_gateway.config.layers import KeyPath
from pml_gateway.config.load import check_text, load_user_settings
from pml_gateway.config.problems import server_entry
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import SKILLS_SERVER, Settings
from pml_gateway.errors import ConfigurationError, GatewayError, UsageError
from pml_gateway.paths import Paths
from pml_gateway.policy.rules import GROUPS, rule_lists
from pml_gateway.secrets.env_file import stored_variables
from pml_gateway.setup.change import ConfigurationChange
from pml_gateway.storage.shared_documents import open_documents
from pml_gateway.text import some_of, suggestion, words_of
from pml_gateway.trust.pins import Pins
from pml_gateway.trust.pins_file import PinsFile

SHOWN_TOOLS = 8

HEAD = """\
# pml-gateway. `pml config show` prints every setting; `pml config --preset NAME` chooses what clients see.
"""


def planned_addition(
    file: ClientFile, settings: Settings, surroundings: Surroundings, *, later: Mapping[str, Any], replaces: bool
) -> ImportPlan:
    """Plan to add the servers of a file.

    Args:
        file: the servers as given.
        settings: the gateway's settings.
        surroundings: the locations of clients' files.
        later: values of each definition that no client writes.
        replaces: take the place of servers of the same names.

    Raises:
        UsageError: a name is taken, or a server is the gateway itself.
    """
    replaced = list(map(safe_name, file.entries)) if replaces else ()
    plan = plan_import([file], settings, surroundings, replaced=replaced)
    for server in plan.servers:
        name = safe_name(server.entry_name)
        if server.outcome == "added" and server.name != name and name in settings.servers:
            raise UsageError(
                f"there is a server {name!r} already, another one", hint="choose another name, or add --replace"
            )
    if any(each.outcome == "gateway" for each in plan.servers):
        raise UsageError("that is this gateway itself", hint="add the servers that are to stand behind it")
    for server in plan.servers:
        if server.definition is not None and server.outcome == "added":
            server.definition = {**server.definition, **later}
    return plan


@dataclass(frozen=True, slots=True)
class ServerAddition:
    """Servers to add: the plan, the servers that they replace, and the change of the configuration."""

    plan: ImportPlan
    taken: Sequence[str]
    change: ConfigurationChange


def addition(
    paths: Paths, file: ClientFile, folder: Path, *, later: Mapping[str, Any], replaces: bool
) -> ServerAddition:
    """Return the addition of the servers of a file, given in a folder.

    Raises:
        UsageError: a name is taken, or a server is the gateway itself.
    """
    settings = load_user_settings(paths)
    surroundings = replace(Surroundings.here(folder), project=folder)
    plan = planned_addition(file, settings, surroundings, later=later, replaces=replaces)
    additions = plan.additions
    taken = [name for name in additions if name in settings.servers]

    def conclude() -> str:
        replaced = removed_definitions(settings, taken)
        RemovedServers(paths.removed_file).change(removed=replaced, added=additions.values())
        return ""

    change = ConfigurationChange(
        paths,
        lambda text: with_servers(text, additions, taken, paths.config_file),
        plan.values,
        plan.freed,
        conclude=conclude,
    )
    return ServerAddition(plan, taken, change)


def with_servers(text: str, additions: Mapping[str, Any], replaced: Collection[str], file: Path) -> str:
    """Return the configuration with servers added, some of them in the place of those of the same name.

    Raises:
        ConfigurationError: a server of the same name is there that is not to be replaced.
    """
    text = without_servers(text, set(replaced) & _entries(text, file).keys(), file)
    for name in additions.keys() & _entries(text, file).keys():
        raise ConfigurationError(f"another program has added {name} just now", hint="run it again")
    section = section_of(text, file)
    return set_values(text or HEAD, {section: additions}, file) if additions else text


def check_has_entry(settings: Settings, name: str) -> None:
    """Check that a server has an entry of its own.

    Raises:
        UsageError: none is configured, or it stands for the setting `skills`.
    """
    server_entry(settings, name)
    if settings.skills and name == SKILLS_SERVER:
        raise UsageError(f"the server {name!r} stands for the setting `skills`", hint="change that in the file by hand")


def without_servers(text: str, names: Collection[str], file: Path) -> str:
    """Return the configuration without these servers."""
    for name in dict.fromkeys(names):
        text = without_entry(text, (section_of(text, file, name), name), file)
    return text


def _entries(text: str, file: Path) -> dict[str, Any]:
    """Return the servers of a configuration file by name, whatever their section is called."""
    values = parse(text, "user", file).values
    return {name: entry for section in SECTIONS for name, entry in (values.get(section) or {}).items()}


def removal(paths: Paths, settings: Settings, names: Sequence[str]) -> ConfigurationChange:
    """Return the removal of servers, with what was accepted of them.

    Raises:
        UsageError: a server is not configured.
    """
    for name in names:
        check_has_entry(settings, name)
    return ConfigurationChange(
        paths,
        lambda text: without_servers(text, names, paths.config_file),
        conclude=lambda: forget_servers(paths, settings, names),
    )


def removed_definitions(settings: Settings, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the definitions of servers as the record of removed ones keeps them."""
    return {name: settings.servers[name].model_dump(mode="json", exclude_defaults=True) for name in names}


def forget_servers(paths: Paths, settings: Settings, names: Collection[str]) -> str:
    """Record servers as removed and forget what was accepted of them; what was rejected stays rejected.

    Returns:
        A warning, if what was accepted cannot be forgotten.
    """
    RemovedServers(paths.removed_file).change(removed=removed_definitions(settings, names), added=())

    def without(pins: Pins) -> Pins:
        for name in names:
            pins = pins.without_server(name)
        return pins

    file = PinsFile(paths.pins_dir, paths.identity(None))
    try:
        documents = open_documents(settings.storage)
        file = PinsFile(paths.pins_dir, paths.identity(None), documents=documents)
        if documents is not None or file.path.exists():
            file.change(without)
    except (OSError, GatewayError) as error:
        return f"what was accepted of {', '.join(names)} stays in {file.path}, which cannot be written ({error})"
    return ""


def unused_without(settings: Settings, names: Collection[str]) -> list[str]:
    """Return the stored values that only these servers use."""
    rest = {name: definition for name, definition in settings.servers.items() if name not in names}
    used = variable_users(settings.model_copy(update={"servers": rest}))
    return sorted((variable_users(settings).keys() - used.keys()) & stored_variables().keys())


@dataclass(frozen=True, slots=True)
class SwitchedServer:
    """A server, or one of its tools, that is to be enabled or disabled."""

    server: str
    tool: str | None = None
    is_listed: bool = True
    """False for a tool of a server whose tools are not known."""

    def is_enabled(self, settings: Settings) -> bool:
        """Return True if it is enabled in the configuration."""
        definition = settings.servers[self.server]
        return definition.enabled if self.tool is None else self.tool not in definition.disabled_tools

    def switched(self, text: str, file: Path, *, is_on: bool) -> str:
        """Return the configuration with it disabled, or enabled: without the key that disables it."""
        section = section_of(text, file, self.server)
        entry = _entries(text, file).get(self.server) or {}
        # An entry that came from a client may say it the other way round.
        key = "disabled" if self.tool is None and "disabled" in entry else "enabled"
        at: tuple[str, ...] = (section, self.server, key)
        if self.tool is not None:
            at = (section, self.server, "tools", self.tool, key)
            tools = entry.get("tools") or {}
            if is_on and self.tool not in tools:
                return text
            # What it would leave empty goes with it.
            if (tools.get(self.tool) or {}).keys() <= {key}:
                at = at[:4] if len(tools) > 1 else at[:3]
        with suppress(ConfigurationError):
            if is_on and (cut := without_entry(text, at, file)).count("#") == text.count("#"):
                return cut
        values: dict[str, Any] = {key: is_on is (key == "enabled")}
        if self.tool is not None:
            values = {"tools": {self.tool: values}}
        return set_values(text, {section: {self.server: values}}, file)


OVERRIDES = ("effect", "title", "description")
"""Settings of a tool that replace what its server says of it."""


def overriding(paths: Paths, switched: SwitchedServer, values: Mapping[str, str]) -> ConfigurationChange:
    """Return the change of what the configuration says in place of a tool's server; an empty text takes it back."""
    server, tool, file = switched.server, switched.tool or "", paths.config_file

    def overridden(text: str) -> str:
        section = section_of(text, file, server)
        written = ((_entries(text, file).get(server) or {}).get("tools") or {}).get(tool) or {}
        given = {key: value for key, value in values.items() if value and written.get(key) != value}
        if given:
            text = set_values(text, {section: {server: {"tools": {tool: given}}}}, file)
        for key in (key for key, value in values.items() if not value and key in written):
            text = _without_override(text, (section, server, "tools", tool, key), file)
        check_text(text, file)
        return text

    return ConfigurationChange(paths, overridden)


def _without_override(text: str, at: tuple[str, ...], file: Path) -> str:
    """Return the text without one setting of a tool, and without what it leaves empty."""
    entry = _entries(text, file)[at[1]]
    if len(entry["tools"][at[3]]) == 1:
        at = at[:4] if len(entry["tools"]) > 1 else at[:3]
    return without_entry(text, at, file)


def switching(paths: Paths, settings: Settings, named: Sequence[SwitchedServer], *, is_on: bool) -> ConfigurationChange:
    """Return the change that enables or disables servers and tools, those alone that are not so already."""
    concerned = [each for each in named if each.is_enabled(settings) is not is_on]

    def switched(text: str) -> str:
        for each in concerned:
            text = each.switched(text, paths.config_file, is_on=is_on)
        return text

    return ConfigurationChange(paths, switched)


def switched_servers(settings: Settings, names: Sequence[str], manifest: Manifest) -> list[SwitchedServer]:
    """Return each server, with a tool of it if one is named: as SERVER:TOOL, SERVER__TOOL or as clients call it.

    Raises:
        UsageError: there is no such server, or it does not list such a tool.
    """
    qualified = {name: owned for owned, name in manifest.names.items()}
    named: list[SwitchedServer] = []
    for name in dict.fromkeys(names):
        server, tool = name, None
        for mark in (":", "__"):
            before, found, after = name.partition(mark)
            if name not in settings.servers and found and after and before in settings.servers:
                server, tool = before, after
                break
        if name not in settings.servers and qualified.get(name, ("",))[0] in settings.servers:
            server, tool = qualified[name]
        definition = server_entry(settings, server if tool or ":" not in name else name.partition(":")[0])
        if tool:
            named.append(_switched_tool(server, definition, tool, manifest.entries.get(server)))
        else:
            named.append(SwitchedServer(server))
    return list(dict.fromkeys(named))


def _switched_tool(
    server: str, definition: UpstreamDefinition, tool: str, entry: ManifestEntry | None
) -> SwitchedServer:
    """Return the tool as its server calls it.

    Raises:
        UsageError: the server's list is known, and the tool is not on it.
    """
    if tool in definition.tools:
        return SwitchedServer(server, tool)
    if entry is None or entry.fingerprint != definition.fingerprint():
        return SwitchedServer(server, tool, is_listed=False)
    tools = [*entry.tools, *(each for variant in entry.differences.values() for each in variant.tools)]
    listed = list(dict.fromkeys(str(each.get("name")) for each in tools))
    respelled = [each for each in listed if words_of(each) == words_of(tool)]
    if tool in listed or len(respelled) == 1:
        return SwitchedServer(server, tool if tool in listed else respelled[0])
    raise UsageError(
        f"{server} has no tool {tool!r}{suggestion(tool, listed)}",
        hint=f"it lists {some_of(listed, SHOWN_TOOLS)}; pml tools shows all, pml refresh asks it again"
        if listed
        else "it lists no tools; pml refresh asks it again",
    )


def last_manifest(paths: Paths, settings: Settings) -> Manifest:
    """Return the tools that the servers of the user's configuration listed last."""
    return ManifestFile(paths.manifest_dir, paths.identity(None), settings.naming.prefix).load()


def checked_renaming(paths: Paths, settings: Settings, name: str, new: str) -> Renaming:
    """Return the renaming of a server.

    Raises:
        UsageError: there is no such server, or it cannot have the new name.
    """
    check_has_entry(settings, name)
    if new == name:
        raise UsageError(f"it is called {name!r} already", hint="give another name")
    if safe_name(new) != new:
        raise UsageError(
            f"{new!r} cannot be a server's name", hint=f"use letters, digits, _, . and -, as in {safe_name(new)!r}"
        )
    if new == "workflows" and settings.workflows:
        raise UsageError("the configuration's workflows have the name 'workflows'", hint="give another name")
    if new in settings.servers:
        raise UsageError(f"there is a server {new!r} already", hint=f"choose another name, or first: pml remove {new}")
    others = frozenset(settings.servers.keys() - {name})
    return Renaming(name, new, last_manifest(paths, settings).names_beginning_with(name), others)


def rewritten(text: str, renaming: Renaming, file: Path) -> dict[KeyPath, tuple[str, ...]]:
    """Return the texts of the configuration that follow a renaming, by key."""
    return renaming.changes(parse(text, "user", file).values)


def renamed(text: str, renaming: Renaming, file: Path) -> str:
    """Return the configuration with a server renamed, and with rules and workflows that follow."""
    section = section_of(text, file, renaming.before)
    text = with_texts(text, rewritten(text, renaming, file), file)
    return with_new_name(text, section, renaming.before, renaming.now, file)


def newly_given(settings: Settings, renaming: Renaming) -> list[str]:
    """Return the rules that give something of the server by its new name alone."""
    lists = (each for each in rule_lists(settings) if each.grants and not each.key.startswith(GROUPS))
    given = [f"{each.key}: {entry!r}" for each in lists for entry in each.entries if renaming.opens(entry)]
    allowing = ((at, rule.match.server or ()) for at, rule in enumerate(settings.rules) if rule.do == "allow")
    given += [
        f"rules.{at}.match.server: {each!r}" for at, ids in allowing for each in ids if renaming.opens_by_id(each)
    ]
    return given
