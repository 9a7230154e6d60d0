"""Command lines of servers, told apart: the words that choose the program, and those that the program is given.

Package runners, interpreters, shells and tools that work on a project take what they run from the folder they run in.
They are known by name, also behind a folder and behind programs that start another one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePath

_OPERATORS = re.compile(r"""[$`;&|<>()\n*?\[\]{}~!#\\]""")
"""Characters by which a shell does more with a line than start a command with words."""

_FROM_AFAR = re.compile(r"(?:npm:|jsr:|https?://).")

_MOUNT_LAST = re.compile(r"-[itdPq]+v")
"""Short options written together, of which the last one takes the next word."""

_VERSION = re.compile(r"[\d.]+[a-z]?$")
_PYTHON_OPTION = re.compile(r"-[bBdEhiIOPqsSuvx]*(?P<kind>[mc])(?P<rest>.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.DOTALL)

_RUNNING_OPTION = re.compile(
    r"(?:exec|command|cmd|run|program|script|entry|plugin|preload|import|require|loader|hook|binary|bin|shell|server"
    r"|module|extension|launch|wrapper)(?:s|able|-path|-file|point)?\Z",
    re.IGNORECASE,
)

_NONE: frozenset[int] = frozenset()

_CODE_ENDING = re.compile(
    r"\.(?:pyc?|pyi|pyz|pth|[cm]?[jt]sx?|node|wasm|sh|bash|zsh|fish|ps1|bat|cmd|exe|rb|php|phar|go|rs|lua|pl|pm|jar|class"
    r"|whl|so|dll|dylib|jl|exs?|erl|swift|kts?|groovy|scala|clj|ipynb|deb|rpm|tgz|gem|nupkg)\Z",
    re.IGNORECASE,
)


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class _Options:
    """Options that take no value, and those that take the next word."""

    flags: frozenset[str]
    values: frozenset[str]


_NPM = _Options(
    _set("-y --yes --no -q --quiet -s --silent -d --verbose --offline --prefer-offline --prefer-online --no-install")
    | _set("--ignore-existing --ignore-scripts --no-audit --no-fund --no-update-notifier --global -g"),
    _set(
        "-p --package --registry --cache --prefix --userconfig --globalconfig --loglevel --workspace -w --tag --before"
    )
    | _set("-n --node-arg --shell --script-shell --allow-build --reporter --dir -C --cwd"),
)
_UV = _Options(
    _set("-q --quiet -v --verbose --refresh --no-cache -n --offline --isolated --native-tls --no-config --no-index")
    | _set("--no-progress --managed-python --no-managed-python --force-reinstall --reinstall -U --upgrade --no-build")
    | _set("--no-env-file --no-sources --no-build-isolation --system-certs --no-python-downloads --show-settings")
    | _set("--compile-bytecode --no-binary --no-cache-dir --system-site-packages --fetch-missing-python"),
    _set("--from --spec --with -w --with-editable --with-requirements -p --python --index --default-index --index-url")
    | _set("-i --extra-index-url --find-links -f --cache-dir --config-file --directory --project --env-file -c -b")
    | _set("--constraints --overrides --build-constraints --prerelease --resolution --link-mode --color -P -C --with")
    | _set("--python-platform --torch-backend --refresh-package --upgrade-package --reinstall-package --pip-args")
    | _set("--no-build-package --no-binary-package --index-strategy --keyring-provider --exclude-newer")
    | _set("--config-setting --config-settings-package --allow-insecure-host --backend --suffix"),
)

_RUNNERS: Mapping[str, tuple[_Options, tuple[tuple[str, ...], ...]]] = {
    "npx": (_NPM, ((),)),
    "pnpx": (_NPM, ((),)),
    "bunx": (_NPM, ((),)),
    "dnx": (_NPM, ((),)),
    "uvx": (_UV, ((),)),
    "npm": (_NPM, (("exec",), ("x",), ("create",), ("init",))),
    "pnpm": (_NPM, (("dlx",), ("create",))),
    "yarn": (_NPM, (("dlx",), ("create",))),
    "bun": (_NPM, (("x",), ("create",))),
    "uv": (_UV, (("tool", "run"), ("x",))),
    "pipx": (_UV, (("run",),)),
    "deno": (_NPM, (("x",),)),
    "dotnet": (_NPM, (("tool", "exec"),)),
    "nix": (_NPM, (("run",), ("shell",), ("develop",))),
}
"""Package runners, with their options and the words that follow those that do more than run packages."""

_NAMING_NPM = _set("-p --package")
_FETCHING: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("npx", "pnpx", "bunx", "npm exec", "npm x", "pnpm dlx", "yarn dlx", "bun x"), _NAMING_NPM),
    **dict.fromkeys(("uvx", "uv tool run"), _set("--from")),
    "pipx run": _set("--spec"),
}
"""Runners that fetch what they start, with the options that name the package in place of the command."""


CONTAINERS = _set("docker podman nerdctl finch")
_FLAGS_OF_CONTAINERS = _set(
    "-i -t -it -ti -d --rm --init --interactive --tty --detach --privileged -P --read-only --publish-all --quiet -q"
    " --no-healthcheck --oom-kill-disable --sig-proxy --disable-content-trust --replace --tls-verify"
)
_MOUNTS = _set("-v --volume --mount")
_ENV_FILES = _set("--env-file -e --env-file-if-exists")

_SHELLS: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(_set("sh bash zsh dash ash ksh fish busybox"), re.compile(r"-[a-zA-Z]*c|--command")),
    "cmd": re.compile(r"/[ck]", re.IGNORECASE),
    **dict.fromkeys(
        _set("powershell pwsh"), re.compile(r"-(?:c|command|commandwithargs|e|ec|encodedcommand)", re.IGNORECASE)
    ),
}
"""Shells, with the option by which each is given a line to run, and not a file."""

_INTERPRETERS = _set(
    "node nodejs python pypy deno bun ruby perl php lua luajit rscript julia java javaw tsx ts-node dotnet elixir"
    " escript groovy kotlin scala racket guile tclsh wish osascript swift nodemon jbang jshell clojure bb electron"
    " vite-node awk gawk mawk sed vim nvim emacs expect"
)
_PLAIN_WITH_SCRIPT = _set("node nodejs python pypy")
"""Interpreters that take nothing from the folder they run in where they are given the path of a script."""

_CODE = _set(
    "-e --eval -p --print -pe -E -c -m -r --run --require --import --loader --experimental-loader - --test"
    " --experimental-default-config-file --experimental-config-file"
)
"""Options of interpreters by which they look into the folder they run in, or run something else than a script."""

_VALUES_OF_INTERPRETERS = _set(
    "-W -X -C --conditions --input-type --title --cp -cp -classpath --class-path -p --module-path -I --tsconfig"
    " --watch-path --inspect-port --env-file --env-file-if-exists --config --import-map --lock --cert --ext --location"
    " -d -L --log-level --preload --cwd --require -r --import --loader --experimental-loader --icu-data-dir"
    " --check-hash-based-pycs --add-modules --upgrade-module-path -P -M -x --exec --experimental-config-file"
)
_VALUES_OF_PYTHON = _set("-W -X --check-hash-based-pycs")

_PROJECT_COMMANDS: Mapping[str, frozenset[str]] = {
    "uv": _set("run"),
    "poetry": _set("run"),
    "pdm": _set("run"),
    "rye": _set("run"),
    "hatch": _set("run"),
    "pipenv": _set("run"),
    "pixi": _set("run"),
    "npm": _set("run run-script start test restart stop"),
    "pnpm": _set("run start exec test"),
    "yarn": _set("run start exec node"),
    "bun": _set("run start"),
    "deno": _set("task"),
    "cargo": _set("run"),
    "go": _set("run"),
    "dotnet": _set("run watch"),
    "bundle": _set("exec"),
    "mix": _set("run"),
    "swift": _set("run"),
    "docker": _set("compose"),
    "podman": _set("compose"),
    "nerdctl": _set("compose"),
    "docker-compose": frozenset(),
    "podman-compose": frozenset(),
    "make": frozenset(),
    "gmake": frozenset(),
    "just": frozenset(),
    "task": frozenset(),
    "rake": frozenset(),
    "gradle": frozenset(),
    "mvn": frozenset(),
    "sbt": frozenset(),
    "ant": frozenset(),
    "bazel": frozenset(),
    "rails": frozenset(),
    "thor": frozenset(),
    "composer": frozenset(),
    "gulp": frozenset(),
    "grunt": frozenset(),
    "nix-shell": frozenset(),
    "devbox": frozenset(),
    "lein": frozenset(),
    "stack": frozenset(),
    "cabal": frozenset(),
    "dart": _set("run"),
    "zig": _set("build run"),
    "mise": _set("run tasks"),
    "gradlew": frozenset(),
    "mvnw": frozenset(),
}
"""Commands that look for a project where they run; with no word named, whatever they are told."""

_MOVES = _set("--directory --cwd --dir --prefix -C")
"""Options of such a command that name the project and make it the folder in which relative paths begin."""

_NAMES_PROJECT = _MOVES | _set(
    "--project --project-directory --manifest-path --manifest -f --file --justfile --taskfile"
)

_NEEDS_NO_PROJECT = _set("--no-project --script -s --with --isolated")
"""Options of `uv run` for what brings its own packages."""

_RUN_PROGRAMS = _set(
    "tsx ts-node ts-node-dev vite-node nodemon esno jiti swc-node fastmcp mcp mcp-proxy mcpo supergateway mcp-cli"
    " @modelcontextprotocol/inspector mcp-inspector concurrently cross-env dotenv-cli dotenvx @dotenvx/dotenvx env-cmd"
    " nx turbo lerna foreman pm2 uvicorn gunicorn hypercorn granian flask streamlit jupyter runpy pdb ipython"
    " watchfiles hupper honcho pytest tox nox invoke smithery @smithery/cli fastapi chainlit"
)
"""Programs, also as packages or modules, that are told what to run by their arguments."""

_SHIMS = _set("mise rtx volta volta-shim proto proto-shim rustup asdf pyenv rbenv nodenv jenv direnv")
"""Programs that others are links to, which they choose by files of the folder that they run in."""

_STARTERS = _set(
    "env nice nohup timeout time stdbuf setsid exec command ionice chrt taskset sudo doas caffeinate unbuffer script"
    " xargs dotenv dotenvx op doppler infisical aws-vault chamber direnv mise asdf nvm fnm volta conda micromamba mamba"
    " . source eval builtin unshare chroot watch screen tmux setpriv runuser su numactl fakeroot proot ld.so ssh find"
    " proxychains proxychains4 torsocks systemd-run systemd-inhibit flatpak-spawn firejail bwrap"
    " mcp-proxy supergateway mcpo cross-env tini dumb-init catchsegv strace gdb arch wsl parallel entr watchexec rtx"
)
"""Programs that start the one that is named behind their options."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line, told apart.

    `looks_around` names what takes the program from its folder, and is empty if nothing does; `command` is the position
    of that word. `choosing` are the positions of the words that say what is run, `paths` of those among them that are
    paths in any spelling. All others are arguments of the program; `moves` says that they begin in another folder than
    the one it is started in, and `is_container` that most of them mean something inside of a container. `lines` are
    positions of words that hold a whole command line, `code` of those that hold a program itself, such as behind
    `python -c`. `project` names a command that works on the project it is started in.
    """

    looks_around: str = ""
    choosing: frozenset[int] = frozenset()
    paths: frozenset[int] = frozenset()
    moves: bool = False
    is_container: bool = False
    mounts: frozenset[int] = frozenset()
    lines: frozenset[int] = frozenset()
    code: frozenset[int] = frozenset()
    project: str = ""
    inner: tuple[str, ...] = ()
    """Return the command inside a container."""
    command: int = 0
    runner: str = ""
    """The package runner with its subcommand, if it fetches what it starts."""
    packages: tuple[str, ...] = ()
    """All that it fetches, as written, in any order; first the one that is started."""

    def behind(self, count: int, choosing: frozenset[int]) -> CommandLine:
        """Return the same line behind `count` other words, of which some choose the program as well."""

        def moved(positions: frozenset[int]) -> frozenset[int]:
            return frozenset(each + count for each in positions)

        return replace(
            self,
            command=self.command + count,
            choosing=choosing | moved(self.choosing),
            paths=moved(self.paths),
            mounts=moved(self.mounts),
            lines=moved(self.lines),
            code=moved(self.code),
        )


@lru_cache(maxsize=1024)
def name_of(command: str) -> str:
    """Return the name of a program without its folder, version and ending."""
    name = PurePath(command.replace("\\", "/")).name.lower()
    for ending in (".exe", ".cmd", ".bat", ".ps1", ".js", ".cjs", ".mjs", ".pyz"):
        name = name.removesuffix(ending)
    name = name.removesuffix("-cli") if name in ("npx-cli", "npm-cli") else name
    bare = _VERSION.sub("", name)
    return bare if bare in _INTERPRETERS else name


def is_assignment(word: str) -> bool:
    """Return True if a word before a program gives it a variable."""
    return _ASSIGNMENT.match(word) is not None


def is_module_option(word: str) -> bool:
    """Return True if Python takes the next word as the name of a module; such a name is no path."""
    option = _PYTHON_OPTION.fullmatch(word)
    return option is not None and option["kind"] == "m" and not option["rest"]


def is_simple_line(line: str) -> bool:
    """Return True if a shell would only start a command with the words of a line."""
    return _OPERATORS.search(line) is None


def first_command(line: str) -> list[str]:
    """Return the words of the first command of a shell's line, without variables; none if it is not plain."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return []
    end = next((at for at, word in enumerate(words) if set(word) <= set("();<>|&")), len(words))
    begin = next((at for at, word in enumerate(words) if word != "exec" and not _ASSIGNMENT.match(word)), end)
    return words[begin:end]


def split_line(line: str) -> list[str]:
    """Return the words of a line of a shell, without operators and quotes as far as these can be told."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        return [word for word in lexer if not set(word) <= set("();<>|&")]
    except ValueError:
        return line.split()


def told_apart(words: Sequence[str]) -> CommandLine:
    """Tell the words of a command line apart; the first one is the command."""
    at = _looking_around(words)
    if at is None:
        return CommandLine(choosing=_started_by_another(words))
    # What stands before it may change what it is, or where it runs; variables that it is given do not.
    before = frozenset(range(at + 1)) - _assignments(words[:at])
    found = _told_apart(words[at], words[at + 1 :])
    return replace(found.behind(at + 1, before), command=at)


def _started_by_another(words: Sequence[str]) -> frozenset[int]:
    """Return the positions of words that may be the program that a starter starts, of one that is not known."""
    name = name_of(words[0]) or words[0]
    if name not in _STARTERS and not name.startswith("ld-linux"):
        return frozenset()
    first = next((at for at, word in enumerate(words) if at and word == "--"), 0)
    end = next((at for at, word in enumerate(words) if at > first and PurePath(word).is_absolute()), len(words) - 1)
    return frozenset(range(first + 2 if first else end + 1)) - _assignments(words)


def assigned(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that the words before a program give it, as `env` takes them."""
    at = _looking_around(words)
    starters = [*words[1:at]] if at is not None else [*words[1:]] if name_of(words[0]) in _STARTERS else []
    pairs = [word.partition("=") for word in starters if _ASSIGNMENT.match(word)]
    return {name: value for name, _, value in pairs}


def runs_words(word: str) -> bool:
    """Return True if mostly a program stands behind this word: an interpreter, a shell, or an option of that kind."""
    name = name_of(word)
    is_option = word.startswith("-") and _RUNNING_OPTION.search(word.partition("=")[0]) is not None
    return is_option or name in _INTERPRETERS or name in _SHELLS


def _assignments(words: Sequence[str]) -> frozenset[int]:
    return frozenset(at for at, word in enumerate(words) if at and _ASSIGNMENT.match(word))


def _looking_around(words: Sequence[str]) -> int | None:
    """Return the position of the word that takes what it runs from its folder."""
    starts_another = name_of(words[0]) in _STARTERS
    for at, word in enumerate(words):
        is_command = at == 0 or starts_another or words[at - 1] == "--"
        name = name_of(word)
        if name in _RUNNERS or name in _SHELLS or name in CONTAINERS:
            rest = words[at + 1 :]
            if is_command or name in ("npx", "uvx", "bunx", "pnpx") or _subcommand(name, rest) is not None:
                return at
        following = words[at + 1] if at + 1 < len(words) else ""
        if name in _INTERPRETERS and (is_command or following.startswith("-") or names_code(following)):
            return at
        if name in _PROJECT_COMMANDS and (is_command or following in _PROJECT_COMMANDS[name]):
            return at
        if at and re.search(r"\s", word) and not word.startswith("{"):
            inner = split_line(word)
            if inner and _looking_around(inner) == 0:
                return at - 1
    return 0 if name_of(words[0]) in _RUN_PROGRAMS else None


def _subcommand(name: str, words: Sequence[str]) -> tuple[int, tuple[str, ...]] | None:
    """Return how many words lead to the package that a runner is told to run, and the last ones that say so."""
    options, wanted = _RUNNERS.get(name, (_NPM, ()))
    for each in wanted:
        positionals = _positionals(words, options)
        first = next(positionals, len(words))
        if not each:
            return 0, each
        for at in (first, next(positionals, len(words))):
            if tuple(words[at : at + len(each)]) == each:
                return at + len(each), each
    return None


def _positionals(words: Sequence[str], options: _Options) -> Iterator[int]:
    """Yield the positions of words that may be neither an option nor the value of one."""
    is_value = False
    for at, word in enumerate(words):
        if word == "--":
            yield from range(at + 1, len(words))
            return
        if is_value:
            is_value = False
        elif word.startswith("-") and len(word) > 1:
            is_value = "=" not in word and word in options.values
        else:
            yield at


def _told_apart(command: str, words: Sequence[str]) -> CommandLine:
    name = name_of(command)
    if name in _SHELLS:
        return _shell(name, words)
    if name in CONTAINERS and (found := _container(name, words)) is not None:
        return found
    if (led := _subcommand(name, words)) is not None:
        return _package(name, words, *led)
    if (project := _project(name, words)) is not None:
        return project
    if name in _INTERPRETERS:
        return _interpreter(name, words)
    if name in _PROJECT_COMMANDS or name in CONTAINERS or name in _RUNNERS:
        # Told to do something else, as `go version`; what that is, is not known.
        return CommandLine(looks_around=name, choosing=frozenset(range(len(words))))
    if name in _RUN_PROGRAMS:
        return CommandLine(name, frozenset(range(len(words))))
    # The word before one that holds a whole command line.
    return CommandLine(looks_around=name_of(split_line(words[0])[0]), choosing=frozenset({0}), lines=frozenset({0}))


def names_code(word: str) -> bool:
    """Return True if a word is written like the path of a program, a library or a module."""
    return _CODE_ENDING.search(word) is not None


def is_shim(path: str) -> bool:
    """Return True if a program chooses another one by the folder it runs in, whatever it is called."""
    return name_of(path) in _SHIMS or name_of(path) in _RUNNERS


def _behind(at: int, words: Sequence[str], found: CommandLine) -> CommandLine:
    """Read on behind a script, a module or a package that is told what to run itself."""
    if at >= len(words):
        return found
    bare = re.split(r"(?<=.)@|==|\[", words[at])[0]
    # The last part of a name with a scope says nothing.
    name = bare if bare.startswith("@") else name_of(bare)
    if bare in _RUN_PROGRAMS or name in _RUN_PROGRAMS:
        return replace(found, choosing=frozenset(range(len(words))), looks_around=found.looks_around or name)
    if (name in _RUNNERS and name not in _INTERPRETERS) or name in _PROJECT_COMMANDS:
        inner = _told_apart(name, words[at + 1 :])
        if inner.looks_around:
            return replace(inner.behind(at + 1, found.choosing), paths=found.paths | inner.behind(at + 1, _NONE).paths)
    return found


def _package(name: str, words: Sequence[str], led: int, subcommand: tuple[str, ...]) -> CommandLine:
    """Return a package runner: all up to the package, or what it is told to run of it."""
    options, _ = _RUNNERS[name]
    rest = words[led:]
    call = next((at for at, word in enumerate(rest) if word in ("-c", "--call") and options is _NPM), None)
    positionals = _positionals(rest, options)
    end = next(positionals, len(rest))
    runner = " ".join((name, *subcommand))
    has_line = call is not None and call < end
    packages = _fetched(runner, [*words[:led], *rest[:end]], "" if has_line else "".join(rest[end : end + 1]))
    fetching = CommandLine(name, runner=runner if packages else "", packages=packages)
    if call is not None and has_line:
        positions = frozenset(range(len(words)))
        return replace(fetching, choosing=positions, lines=positions & {led + call + 1})
    unknown = [
        word
        for word in rest[:end]
        if word.startswith("-") and "=" not in word and word != "--" and word not in options.flags | options.values
    ]
    if unknown:
        # One of them may take what looks like the package.
        end = next(positionals, len(rest))
    moves = any(word.partition("=")[0] in ("--directory", "--cwd", "-C") for word in words[: led + end])
    found = replace(fetching, choosing=frozenset(range(min(led + end + 1, len(words)))), moves=moves)
    return _behind(led + end, words, found)


def _fetched(runner: str, before: Sequence[str], started: str) -> tuple[str, ...]:
    """Return what a runner fetches, of the words `before` the one that is `started`, which may be empty."""
    if (naming := _FETCHING.get(runner)) is None:
        return ()
    first = _values(before, naming) or [started]
    return (*first, *_values(before, _WITH)) if first[0] else ()


_WITH = _set("--with")


def _values(words: Sequence[str], options: frozenset[str]) -> list[str]:
    """Return what these options are given, in the next word or after `=`."""
    found: list[str] = []
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in options:
            found += [value] if equals else words[at + 1 : at + 2]
    return [each for each in found if each]


def _interpreter(name: str, words: Sequence[str]) -> CommandLine:
    """Return an interpreter: all up to the script, which is a path in any spelling."""
    looks_around = name not in _PLAIN_WITH_SCRIPT
    skipped = int(name in ("deno", "bun") and words[:1] in (["run"], ["serve"]))
    is_python, is_value = name in ("python", "pypy"), False
    values = _VALUES_OF_PYTHON if is_python else _VALUES_OF_INTERPRETERS
    for at, word in list(enumerate(words))[skipped:]:
        option = word.partition("=")[0]
        python = _PYTHON_OPTION.fullmatch(word) if is_python and not is_value else None
        if is_value:
            is_value = False
        elif python is not None:
            # The module or the code is the next word, or stands behind the option.
            end = at + (2 if not python["rest"] else 1)
            told = frozenset(range(min(end, len(words))))
            if python["kind"] == "c":
                return CommandLine(name, told, code=told & {end - 1})
            return _behind(end - 1, words, CommandLine(name, told))
        elif word == "--":
            continue
        elif word.startswith("-"):
            looks_around |= option == "-" if is_python else option in _CODE or option in _ENV_FILES
            if word in ("-e", "--eval", "-p", "--print", "-pe", "-jar") and not is_python:
                if word == "-jar":
                    return CommandLine(name, frozenset(range(at + 1)), frozenset({at + 1} & {*range(len(words))}))
                told = frozenset(range(min(at + 2, len(words))))
                is_code = word in ("-e", "--eval") or name in ("node", "nodejs")
                return CommandLine(name, told, code=told & {at + 1} if is_code else frozenset())
            is_value = "=" not in word and word in values
        else:
            is_far = re.match(r"(?:npm:|jsr:|https?://|file:///)", word) is not None
            is_class = name in ("java", "javaw") and "/" not in word
            paths = frozenset() if is_far or is_class else frozenset({at})
            found = CommandLine(name if looks_around else "", frozenset(range(at + 1)), paths)
            if name == "deno" and _FROM_AFAR.match(word):
                found = replace(found, runner=name, packages=(word,))
            return _behind(at, words, found)
    return CommandLine(name, frozenset(range(len(words))))


def _shell(name: str, words: Sequence[str]) -> CommandLine:
    option = _SHELLS[name]
    line = next((at + 1 for at, word in enumerate(words) if option.fullmatch(word)), None)
    if line is None:
        script = next((at for at, word in enumerate(words) if not word.startswith("-")), len(words))
        if name == "busybox":
            return CommandLine(name, frozenset(range(len(words))))
        positions = frozenset(range(len(words)))
        return CommandLine(name, positions & frozenset(range(script + 1)), positions & {script})
    if name == "cmd" and len(words) > line + 1:
        found = told_apart(words[line:]).behind(line, frozenset(range(line)))
        return replace(found, looks_around=found.looks_around or name)
    # What stands behind it may be started by it.
    positions = frozenset(range(len(words)))
    return CommandLine(name, positions - {line}, lines=positions & {line})


def _container(name: str, words: Sequence[str]) -> CommandLine | None:
    run = next(_positionals(words, _Options(frozenset(), frozenset({"--context", "-H", "--host", "-l", "-c"}))), None)
    if run is not None and words[run] == "container":
        run += 1
    if run is None or words[run : run + 1] != ["run"]:
        return None
    mounts, env_files, at = set(), set(), run + 1
    while at < len(words):
        option, equals, _ = words[at].partition("=")
        if not option.startswith("-"):
            break
        is_glued = option.startswith("-v") and len(option) > 2
        takes_next = not (equals or is_glued or option in _FLAGS_OF_CONTAINERS)
        where = at + takes_next
        if option in _MOUNTS or is_glued or _MOUNT_LAST.fullmatch(option):
            mounts.add(where)
        elif option == "--env-file":
            env_files.add(where)
        at += 1 + takes_next
    positions = {*range(len(words))}
    return CommandLine(
        name,
        frozenset({*range(run + 1), *env_files} & positions),
        is_container=True,
        mounts=frozenset(mounts & positions),
        inner=tuple(words[at + 1 :]),
        runner=f"{name} run" if at < len(words) else "",
        packages=tuple(words[at : at + 1]),
    )


def _project(name: str, words: Sequence[str]) -> CommandLine | None:
    wanted = _PROJECT_COMMANDS.get(name)
    if wanted is None:
        return None
    values = _UV.values if name == "uv" else _NAMES_PROJECT
    positionals = [*_positionals(words, _Options(frozenset(), values))]
    # The first ones may be values of options.
    at = next((each for each in positionals[:4] if words[each] in wanted), None)
    if wanted and at is None:
        return None
    target = next((each for each in positionals if at is not None and each > at), None)
    options = {word.partition("=")[0] for word in words}
    moves = not options.isdisjoint(_MOVES)
    if target is not None and (PurePath(words[target]).is_absolute() or (name == "go" and "@" in words[target])):
        # It is named, wherever that is looked for.
        return CommandLine(name, frozenset(range(target + 1)), moves=moves)
    if name == "bun" and target is not None and ("/" in words[target] or "." in words[target]):
        return None
    what = name if at is None else f"{name} {words[at]}"
    is_told = not options.isdisjoint(_NAMES_PROJECT | (_NEEDS_NO_PROJECT if name == "uv" else frozenset()))
    return CommandLine(
        what,
        # The project says what its commands are, so that no word is surely an argument of the program.
        frozenset(range(len(words))),
        moves=moves,
        project="" if is_told else what,
    )
