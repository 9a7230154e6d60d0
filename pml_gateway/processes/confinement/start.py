"""Starting stdio servers without programs from the client's folder.

Programs that run packages, scripts and projects look for them in the working directory, where a repository may have put
others of the same name. They are therefore run in the home directory, with paths in their arguments made absolute,
unless the owner set `sessions: per_folder` or approved the project. A start that needs the folder for more is refused.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pml_gateway.config.commands.command_line import (
    assigned,
    is_module_option,
    is_shim,
    is_simple_line,
    name_of,
    names_code,
    runs_words,
    split_line,
    told_apart,
)
from pml_gateway.config.commands.packages import package_run
from pml_gateway.config.project import is_approved
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import ConfigurationError, UpstreamUnusableError
from pml_gateway.paths import Paths
from pml_gateway.processes.confinement.loader_variables import is_loader_variable
from pml_gateway.processes.confinement.relative_paths import (
    CommandReading,
    PathReader,
    is_plainly_relative,
    is_relative,
)
from pml_gateway.regular_files import git_root, is_inside, read_regular
from pml_gateway.secrets.masking import mask_text
from pml_gateway.secrets.references import folder_reference, references, resolve_in
from pml_gateway.text import escaped, shortened
from pml_gateway.working_directory import WorkingDirectory

MAX_SHOWN = 60
"""Maximum characters of an argument in a reason."""

_SHEBANG_BYTES = 200
_MOUNT_SOURCES = ("source", "src")

_IF_PATH = "write ./ before it if it is one, and servers.NAME.sessions: shared if it is not"

_NAMES_PLACE = frozenset(
    {"--directory", "--cwd", "--dir", "--prefix", "-C", "--project", "--project-directory", "--manifest-path", "-f"}
    | {"--manifest", "--file", "--justfile", "--taskfile"}
)

_PLACES_OF_CODE = frozenset({"/app", "/code", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/etc", "/root"})
"""Folders of containers that usually contain the image's programs."""

_PATH_LISTS = frozenset({"PATH", "PYTHONPATH", "NODE_PATH", "CLASSPATH", "LD_LIBRARY_PATH", "PERL5LIB", "RUBYLIB"})

_LOADS_BY_NAME = re.compile(
    r"(?:^|\s)(?:--import|--require|-r|--loader|--experimental-(?:loader|default-config-file))\b"
)

_SHELLS_OF_SCRIPTS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "fish"})


class ProgramOfFolderError(UpstreamUnusableError):
    """The client's folder would determine which program a server runs."""

    @classmethod
    def of(cls, upstream_id: str, reason: str, remedy: str) -> ProgramOfFolderError:
        """Return the error for a server, with the ways to start it anyway."""
        remedy = f"{remedy.replace('NAME', upstream_id)}; " if remedy else ""
        return cls(
            f"{upstream_id}: {reason}; a repository could choose what runs with this server's secrets",
            hint=f"{remedy}to let every folder you work in choose, set servers.{upstream_id}.sessions to per_folder; "
            "to let this project, approve its .pml.yaml: pml trust project",
            details={"reason": reason},
        )

    @property
    def reason(self) -> str:
        """Return the reason why the folder would decide."""
        return str(self.details["reason"])


@dataclass(frozen=True, slots=True)
class Confinement:
    """A start that does not search the client's folder.

    `reasons` list the parts of it that refer to that folder nonetheless. `runs_elsewhere` is False for programs that
    may run in the folder, since they take no programs from there.
    """

    args: tuple[str, ...]
    env: dict[str, str]
    reasons: tuple[str, ...] = ()
    runs_elsewhere: bool = False


@dataclass(frozen=True)
class ConfinedClient:
    """A client's folder, and the owner's permissions for it to decide about one server."""

    upstream_id: str
    definition: UpstreamDefinition
    working_directory: WorkingDirectory

    @cached_property
    def is_project_approved(self) -> bool:
        """Return True if the folder is the owner's own, or its project is approved as it is now. Reads the disk."""
        return is_owners(self.working_directory) or _is_approved(self.working_directory, self.working_directory.folder)

    @property
    def decides(self) -> bool:
        """Return True if the folder may decide which program runs. Reads the disk."""
        return self.definition.sessions == "per_folder" or self.is_project_approved

    @cached_property
    def cwd(self) -> str:
        """Return the folder in the definition, with references resolved; empty if it has none."""
        return resolve_in(self.definition.cwd, self.working_directory) if self.definition.cwd else ""

    @property
    def base(self) -> Path:
        """Return the folder in which the definition's relative paths start."""
        return self.working_directory.path(self.cwd) if self.cwd else self.working_directory.folder

    @property
    def cwd_depends(self) -> bool:
        """Return True if the definition has a folder that depends on the client's."""
        return bool(self.cwd) and (is_relative(self.cwd) or self.names_folder(self.definition.cwd or ""))

    @property
    def begins_in_folder(self) -> bool:
        """Return True if relative paths start in the client's folder, or in one that depends on it."""
        return not self.cwd or self.cwd_depends

    def names_folder(self, written: str) -> bool:
        """Return True if a text refers to the client's folder by a reference."""
        if folder_reference(written) is not None:
            return True
        values = [
            self.working_directory.environ.get(each.name, "") for each in references(written) if each.kind == "env"
        ]
        return any(value.startswith("/") and is_inside(value, self.working_directory.folder) for value in values)


def is_owners(working_directory: WorkingDirectory) -> bool:
    """Return True if a client's folder is the home directory, or an ancestor that only the system can write to."""
    folder, home = working_directory.folder, working_directory.home
    if folder == home:
        return True
    try:
        return home.is_relative_to(folder) and not folder.stat().st_mode & 0o022
    except OSError:
        return False


def _is_approved(working_directory: WorkingDirectory, folder: Path) -> bool:
    store = TrustStore(Paths.from_environ(working_directory.environ, working_directory.folder).trust_file)
    try:
        return is_approved(folder, store)
    except ConfigurationError:
        # A damaged list approves nothing.
        return False


def confinement(client: ConfinedClient) -> Confinement | None:
    """Return how to start a server without programs from the client's folder; None if that folder may decide.

    Raises:
        ProgramOfFolderError: the folder would decide which program runs, or that is unclear.
        SecretError: a reference in the definition cannot be resolved.
    """
    try:
        found = _confined(client)
    except _NeedsFolderError as error:
        if client.decides:
            return None
        raise ProgramOfFolderError.of(client.upstream_id, str(error), error.remedy) from None
    return None if found.runs_elsewhere and client.decides else found


class _NeedsFolderError(Exception):
    """A start that needs the client's folder; `remedy` says how to avoid that."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


def _confined(client: ConfinedClient) -> Confinement:
    definition, working_directory = client.definition, client.working_directory
    written = [definition.command or "", *definition.args]
    env = {name: resolve_in(text, working_directory) for name, text in definition.env.items()}
    _check_variables(client, env)
    words = _Words(client, written, [resolve_in(text, working_directory) for text in written])
    words.check()
    if not words.looks_around and not _loads_by_name(env | assigned(words.resolved)):
        return Confinement(tuple(words.resolved[1:]), env)
    if client.cwd_depends and not words.line.is_container:
        raise _NeedsFolderError(
            f"{words.looks_around or 'NODE_OPTIONS'} would look for what it runs in cwd {_shown(definition.cwd or '')}",
            "give the folder to the server as an argument instead",
        )
    args = words.elsewhere()[1:]
    reasons = words.reasons
    if client.begins_in_folder and not words.line.moves and not words.takes_words_as_they_are:
        paths = PathReader(client.base, is_installed=True)
        for name, value in env.items():
            # Values for a container are interpreted inside it.
            if is_loader_variable(name) or words.line.is_container:
                continue
            read = paths.variable(name, value)
            if read.is_unclear:
                raise _NeedsFolderError(f"env.{name} may be a path in the client's folder or not", _IF_PATH)
            if read.names_path:
                reasons.append(f"env.{name} is relative")
            env[name] = read.text
    return Confinement(tuple(args), env, tuple(reasons), runs_elsewhere=True)


def _check_variables(client: ConfinedClient, env: Mapping[str, str]) -> None:
    """Refuse variables that affect which code runs and refer to the client's folder."""
    for name, value in env.items():
        is_relative_one = client.begins_in_folder and _names_relative(name, value)
        if is_loader_variable(name) and (is_relative_one or client.names_folder(client.definition.env[name])):
            raise _NeedsFolderError(
                f"env.{name} says what code runs, and names the client's folder", "write its absolute path"
            )


class _Words:
    """The words of a command line: as `written`, with references `resolved`, and classified."""

    def __init__(self, client: ConfinedClient, written: Sequence[str], resolved: Sequence[str]) -> None:
        self.resolved = resolved
        self.line = told_apart(resolved)
        self.looks_around = self.line.looks_around
        self.reasons: list[str] = []
        self._client = client
        self._written = written
        if not self.looks_around and _starts_others(resolved[0], client):
            self.looks_around = name_of(resolved[0])
        run = package_run(resolved[self.line.command], resolved[self.line.command + 1 :])
        packages = frozenset() if run is None else frozenset({*run.packages, *run.runner.split()})
        self._paths = PathReader(client.base, packages=packages, is_installed=bool(self.looks_around))

    @property
    def takes_words_as_they_are(self) -> bool:
        """Return True if the owner declared that no word is a path in a client's folder, whatever its form."""
        return self._client.definition.sessions == "shared" and not self._client.definition.cwd

    @property
    def _reads_paths(self) -> bool:
        """Return True if relative paths in the program's own arguments start in the client's folder."""
        return self._client.begins_in_folder and not (self.takes_words_as_they_are or self.line.moves)

    def check(self) -> None:
        """Refuse words that determine what runs and refer to the client's folder."""
        command = self.resolved[0]
        is_file = "/" in command or os.sep in command
        if self._client.names_folder(self._written[0]) or (
            self._client.begins_in_folder and is_file and is_relative(command)
        ):
            raise _NeedsFolderError(
                f"command {_shown(self._written[0])} is a file of the client's folder", "write its absolute path"
            )
        for name, value in assigned(self.resolved).items():
            is_named = value != "" and self._client.begins_in_folder and _names_relative(name, value)
            if is_loader_variable(name) and is_named:
                raise _NeedsFolderError(f"{name} says what code runs, and names the client's folder")
        for at in sorted(self.line.choosing - self.line.lines - {0}):
            if self._names_program_of_folder(at):
                raise _NeedsFolderError(
                    f"argument {_shown(self._written[at])} says what runs, and lies in the client's folder",
                    "write its absolute path",
                )
        if self.line.project and self._client.begins_in_folder and not self.takes_words_as_they_are:
            raise _NeedsFolderError(
                f"{self.line.project!r} works on the project that it is started in", "name the project by an option"
            )

    def elsewhere(self) -> list[str]:
        """Return the words for a start in another folder, with paths made absolute."""
        self.check()
        line, words = self.line, [*self.resolved]
        for at in range(1, len(words)):
            if at in line.lines:
                words[at] = self._whole_line(at)
            elif line.is_container:
                words[at] = self._mount(at) if at in line.mounts else words[at]
            elif at not in line.choosing:
                words[at] = self._argument(at)
        if line.is_container:
            self._check_container(words)
        return words

    def _names_program_of_folder(self, at: int) -> bool:
        word, before = self.resolved[at], self.resolved[at - 1]
        if self._client.names_folder(self._written[at]):
            return True
        if not self._client.begins_in_folder or self.takes_words_as_they_are or at in self.line.code:
            return False
        if at in self.line.paths:
            return is_relative(word) and word != "-"
        if self.line.moves:
            # Other words are relative to the folder that it changes to.
            option, equals, value = word.partition("=")
            moved_to = value if equals and option in _NAMES_PLACE else word if before in _NAMES_PLACE else "/"
            return is_relative(moved_to)
        if is_module_option(before):
            return is_plainly_relative(word)
        read = self._paths.argument(word)
        # In an argument of several words, nothing is made absolute.
        return read.names_path or (read.is_unclear and " " in word)

    def _argument(self, at: int) -> str:
        word, before = self.resolved[at], self.resolved[at - 1]
        name, equals, value = word.partition("=")
        if equals and name.isidentifier() and is_loader_variable(name):
            is_relative_one = self._reads_paths and _names_relative(name, value)
            if is_relative_one or self._client.names_folder(self._written[at]):
                raise _NeedsFolderError(f"{name} says what code runs, and names the client's folder")
            return word
        read = self._paths.argument(word, before) if self._reads_paths else CommandReading(word)
        is_named = read.names_path or self._client.names_folder(self._written[at])
        if is_named and (
            names_code(word) or before == "--" or runs_words(before) or runs_words(word) or _is_executable(read.text)
        ):
            raise _NeedsFolderError(
                f"argument {_shown(self._written[at])} may be run, and lies in the client's folder",
                "write its absolute path",
            )
        if read.is_unclear:
            raise _NeedsFolderError(
                f"argument {_shown(self._written[at])} may be a path in the client's folder or not", _IF_PATH
            )
        if read.names_path:
            self.reasons.append(f"argument {_shown(self._written[at])} is relative")
        return read.text

    def _whole_line(self, at: int) -> str:
        """Check a whole command line, as passed to a shell."""
        line, names_folder = self.resolved[at], self._client.names_folder(self._written[at])
        words = _simple_words(line)
        if words:
            folder = str(self._client.working_directory.folder)
            written = [word.replace(folder, "${cwd}") for word in words] if names_folder else words
            inner = _Words(self._client, written, words)
            read = inner.elsewhere()
            self.reasons += inner.reasons
            return line if read == words else shlex.join(read)
        depends = names_folder
        if self._client.begins_in_folder and not self.takes_words_as_they_are:
            texts = [line, *split_line(line)]
            depends |= any(self._paths.argument(text).may_name_path for text in texts)
        if depends:
            raise _NeedsFolderError(
                f"the line {_shown(self._written[at])} depends on the client's folder",
                "write the command without a shell",
            )
        return line

    def _mount(self, at: int) -> str:
        """Return a mount with its source made absolute."""
        word = self.resolved[at]
        if not self._reads_paths:
            return word
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if word.startswith("-v"):
            option, value = word[:2], word[2:].removeprefix("=")
        mount = f"{option}{equals}{_absolute_mount(value, self._paths)}"
        if mount != word:
            self.reasons.append(f"argument {_shown(self._written[at])} is relative")
        return mount

    def _check_container(self, words: Sequence[str]) -> None:
        """Refuse a container that runs code from the client's folder."""
        targets = [
            target
            for at in self.line.mounts
            for source, target in [_mounted(words[at])]
            # A source that is written out is the same for every client.
            if is_inside(source, self._client.working_directory.folder) and source not in self._written[at]
        ]
        if not targets:
            return
        inner = self.line.inner
        places = [*inner]
        for at, word in enumerate(words):
            option, equals, value = word.partition("=")
            if option in ("-w", "--workdir", "--entrypoint"):
                places.append(value if equals else "".join(words[at + 1 : at + 2]))
            elif word.startswith("-w"):
                places.append(word[2:])
        looks_around = bool(inner) and bool(told_apart(inner).looks_around)
        targets = [os.path.normpath(target) for target in targets]
        covers_code = any(
            target == "/"
            or any(is_inside(target, place) for place in _PLACES_OF_CODE)
            or "entrypoint" in target.rpartition("/")[2]
            for target in targets
        )
        if covers_code or looks_around or any(is_inside(place, target) for place in places for target in targets):
            raise _NeedsFolderError(
                "the container would look for what it runs in the mounted folder of the client",
                "mount it where the image does not start",
            )


def _loads_by_name(env: Mapping[str, str]) -> bool:
    """Return True if Node.js would load a module that it searches for in its working directory."""
    return any(name.upper() == "NODE_OPTIONS" and _LOADS_BY_NAME.search(value) for name, value in env.items())


def _names_relative(name: str, value: str) -> bool:
    """Return True if a variable that affects which code runs has a relative path; an empty entry is one."""
    if name.upper() in _PATH_LISTS:
        return any(is_relative(each) for each in value.split(os.pathsep))
    words = re.split(r"[\s=:,]+", value)
    return any(is_plainly_relative(word) for word in words) or PathReader(Path("/nowhere")).argument(value).names_path


def _is_executable(text: str) -> bool:
    """Return True if a path, alone or after an option, is an executable file."""
    path = text.partition("=")[2] or text
    return Path(path).is_file() and os.access(path, os.X_OK)


def _simple_words(line: str) -> list[str]:
    """Return the words of a line that only starts a command; empty if it does more."""
    try:
        return shlex.split(line) if is_simple_line(line) else []
    except ValueError:
        return []


def _starts_others(command: str, client: ConfinedClient) -> bool:
    """Return True if a command is a shell script, or a link to a shim that looks for a program. Reads its start."""
    path = client.definition.env.get("PATH") or client.working_directory.environ.get("PATH", os.defpath)
    found = found_command(command, replace(client.working_directory, folder=client.base), path)
    if is_shim(os.path.realpath(found)):
        return True
    try:
        start = read_regular(found, _SHEBANG_BYTES) if Path(found).is_absolute() else b""
    except OSError:
        return False
    first, *_ = start.split(b"\n", 1)
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    return any(name_of(word) in _SHELLS_OF_SCRIPTS for word in words)


def _absolute_mount(text: str, paths: PathReader) -> str:
    if "=" in text and ":" not in text.partition("=")[0]:
        parts = [part.partition("=") for part in text.split(",")]
        is_bind = any(key == "type" and value == "bind" for key, _, value in parts)
        return ",".join(
            f"{key}{equals}{paths.absolute(value)}"
            if key in _MOUNT_SOURCES and (is_bind or is_plainly_relative(value)) and is_relative(value)
            else f"{key}{equals}{value}"
            for key, equals, value in parts
        )
    source, colon, rest = text.partition(":")
    # A source without a slash is the name of a volume.
    if colon and is_relative(source) and (is_plainly_relative(source) or "/" in source):
        return f"{paths.absolute(source)}{colon}{rest}"
    return text


def _mounted(word: str) -> tuple[str, str]:
    """Return the source and target of a mount; empty if it has none."""
    text = word.removeprefix("-v").removeprefix("=") if word.startswith("-v") else word
    text = text.partition("=")[2] if text.startswith("--") else text
    if "=" in text and ":" not in text.partition("=")[0]:
        values = {key: value for key, _, value in (part.partition("=") for part in text.split(","))}
        source = next((values[key] for key in _MOUNT_SOURCES if key in values), "")
        return source, next((values[key] for key in ("target", "dst", "destination") if key in values), "")
    source, _, rest = text.partition(":")
    return (source, rest.partition(":")[0]) if rest else ("", "")


def search_path(path: str, client: ConfinedClient) -> str:
    """Return a `PATH` without the folders that the client's folder controls.

    These are relative ones, the empty one, and the package folders that npm and the like put first.
    """
    folder = client.working_directory.folder
    entries = path.split(os.pathsep)
    kept = [
        entry
        for entry in entries
        if not is_relative(entry) and not ("node_modules" in Path(entry).parts and is_inside(entry, folder))
    ]
    return path if len(kept) == len(entries) or client.decides else os.pathsep.join(kept)


def found_command(command: str, working_directory: WorkingDirectory, path: str) -> str:
    """Return the file of a command, looked up in a `PATH`; the command itself if not found, so that its start fails.

    Servers have variables of their own, so the `PATH` of this process is not used.
    """
    if "/" in command or os.sep in command or command.startswith("~"):
        return str(working_directory.path(command))
    folders = os.pathsep.join(str(working_directory.folder / each) for each in path.split(os.pathsep))
    return shutil.which(command, path=folders) or command


def is_foreign(file: Path, client: ConfinedClient) -> bool:
    """Return True if a file is in a project that is not approved. Reads the disk."""
    working_directory = client.working_directory
    root = git_root(file.parent)
    places = {working_directory.folder} if is_inside(file, working_directory.folder) else set()
    if root is not None and not working_directory.home.is_relative_to(root):
        places.add(Path(root))
    written = client.definition.env_file or ""
    if client.begins_in_folder and (
        is_relative(resolve_in(written, working_directory)) or client.names_folder(written)
    ):
        places.add(working_directory.folder)
    return any(
        not is_owners(replace(working_directory, folder=place)) and not _is_approved(working_directory, place)
        for place in places
    )


def _shown(text: str) -> str:
    """Return a text of a definition for display, on one line and without secrets."""
    return repr(shortened(escaped(mask_text(text)), MAX_SHOWN))
