"""Variables in a client's entry, in any client's syntax, replaced by the gateway's own `${env:NAME}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pml_gateway.clients.model import FileFormat, KnownClient, Scope, Variables
from pml_gateway.clients.places import Surroundings
from pml_gateway.config.advice import SHELLS
from pml_gateway.secrets.judgement import Keys
from pml_gateway.secrets.names import own_variable

_VARIABLE = re.compile(
    r"\$\{env:(?P<env>[^{}:]*)(?::-(?P<env_default>[^{}]*))?\}"
    r"|\$\{(?P<kind>input|command|config|file):(?P<key>[^{}]*)\}"
    r"|\$\{(?P<braced>[A-Za-z_]\w*|/)(?::-(?P<default>[^{}]*))?\}"
    r"|\$(?P<dollar>[A-Za-z_]\w*)"
    r"|(?<![\w%])%(?P<percent>[A-Za-z_]\w*)%(?![\w%])"
    r"|(?<!\$)\{env:(?P<curly>[^{}]*)\}"
    r"|(?<!\$)\{file:(?P<curly_file>[^{}]*)\}"
)
_GROUPS = ("env", "kind", "braced", "dollar", "percent", "curly", "curly_file")
_STYLES: Mapping[Variables, frozenset[str]] = {
    Variables.NONE: frozenset(),
    Variables.BRACED: frozenset({"braced"}),
    Variables.DOLLAR: frozenset({"braced", "dollar"}),
    Variables.PREFIXED: frozenset({"env", "kind", "word"}),
    Variables.ANY: frozenset({"braced", "env", "kind", "word", "curly", "curly_file", "dollar", "percent"}),
}
_SHELL_NAME = re.compile(r"[A-Z][A-Z0-9_]{2,}")
"""A shell variable in pasted text: `$x` is part of a script, and `pa$S` of a password."""

_WORD = re.compile(r"[a-z]+(?:[A-Z][A-Za-z]*)?|/")
_WORDS = frozenset(
    {"userHome", "workspaceFolder", "workspaceRoot", "workspaceFolderBasename", "cwd", "pathSeparator", "/"}
)
_OURS = re.compile(r"\$\{(?:(?:env|file):|(?:cwd|workspaceFolder)\})")


@dataclass(slots=True)
class Translation:
    """The translation of one entry.

    `variables` are the environment variables it reads, each with the user's description of it. `definition` is None if
    the entry cannot be used; `problems` then says why.
    """

    definition: dict[str, Any] | None = field(default=None, repr=False)
    variables: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EntryOrigin:
    """The origin of an entry; `inputs` are the file's `inputs`, which VS Code asks the user for."""

    client: KnownClient
    scope: Scope
    surroundings: Surroundings
    inputs: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


def expanded(definition: Mapping[str, Any], origin: EntryOrigin, found: Translation) -> dict[str, Any]:
    """Return `definition` with its client's variables in the gateway's syntax.

    A variable defined in the definition's own `env` is kept in arguments, because the program expands it; elsewhere it
    is replaced by that value.
    """
    if origin.client.file_format is FileFormat.TOML:
        # Codex names variables in separate members, which are in our syntax already.
        return dict(definition)
    expansion = _Expansion(definition.get("env") or {}, definition.get("command") or "", origin, found)
    return {key: expansion.mapped(value, (key,)) for key, value in definition.items()}


@dataclass(frozen=True, slots=True)
class _Expansion:
    own: Mapping[str, str]
    command: str
    origin: EntryOrigin
    found: Translation

    def mapped(self, value: Any, at: Keys) -> Any:
        match value:
            case str():
                return self._text(value, at, frozenset(at[1:] if at[0] == "env" else ()))
            case dict():
                return {key: self.mapped(item, (*at, key)) for key, item in value.items()}
            case list():
                return [self.mapped(item, at) for item in value]
            case _:
                return value

    @property
    def _styles(self) -> frozenset[str]:
        styles = _STYLES[self.origin.client.variables]
        is_shell = Path(self.command).stem in SHELLS
        return styles - {"braced", "dollar", "percent"} if is_shell and self._is_pasted else styles

    @property
    def _is_pasted(self) -> bool:
        return self.origin.client.variables is Variables.ANY

    def _text(self, text: str, at: Keys, inside: frozenset[str]) -> str:
        """Expand `text`; names in `inside` are being defined, so they refer to the client's environment."""
        return _VARIABLE.sub(lambda match: self._variable(match, at, inside), text)

    def _variable(self, match: re.Match[str], at: Keys, inside: frozenset[str]) -> str:
        style = next(each for each in _GROUPS if match[each] is not None)
        name = match[style]
        default = match["env_default"] if style == "env" else match["default"]
        is_own = style not in ("kind", "curly_file") and name in self.own and name not in inside
        if is_own and self._is_left_to_program(match, style, at):
            return match[0]
        if is_own and (style in self._styles or not self.command):
            return self._environment(name, default, inside)
        if style == "braced" and "word" in self._styles and self._is_word(name) and default is None:
            return self._word(match[0], name)
        if style not in self._styles or not self._is_variable(match, style):
            return f"${match[0]}" if _OURS.match(match[0]) else match[0]
        if style == "kind":
            return self._of_client(match[0], match["kind"], match["key"])
        if style == "curly_file":
            return f"${{file:{name}}}"
        return self._environment(name, default, inside)

    def _is_left_to_program(self, match: re.Match[str], style: str, at: Keys) -> bool:
        """Return True for `${X}` and `$X` in arguments, unless `X` only passes on the variable of the same name."""
        is_plain = match["default"] is None and style in ("braced", "dollar", "percent")
        return bool(self.command) and is_plain and at[0] == "args" and not self._passes_on(match[style])

    def _passes_on(self, name: str) -> bool:
        return self._environment(name, None, frozenset()) == f"${{env:{name}}}"

    def _is_word(self, name: str) -> bool:
        return name in _WORDS if self._is_pasted else _WORD.fullmatch(name) is not None

    def _is_variable(self, match: re.Match[str], style: str) -> bool:
        """Return False for text that is not a variable in pasted text: names in scripts, and parts of passwords."""
        if not self._is_pasted or style not in ("braced", "dollar", "percent"):
            return True
        if style == "braced":
            return match[style].upper() == match[style]
        is_inside = match.start() > 0 and match.string[match.start() - 1].isalnum()
        return (_SHELL_NAME.fullmatch(match[style]) is not None and not is_inside) or match[0] == match.string

    def _environment(self, name: str, default: str | None, inside: frozenset[str]) -> str:
        if name in self.own and name not in inside:
            return self._text(self.own[name], ("env", name), inside | {name})
        if name == "CLAUDE_PROJECT_DIR":
            return str(self.origin.surroundings.project)
        if name == "HOME":
            return str(self.origin.surroundings.home)
        if default is not None:
            return f"${{env:{name}:-{default}}}"
        self.found.variables.setdefault(name, "")
        return f"${{env:{name}}}"

    def _of_client(self, written: str, kind: str, key: str) -> str:
        match kind:
            case "file":
                return written
            case "input":
                variable = own_variable(self.origin.name, key)
                self.found.variables.setdefault(variable, self.origin.inputs.get(key, ""))
                self.found.notes.append(f"asked you for {key!r}; the gateway reads the variable {variable} instead")
                return f"${{env:{variable}}}"
            case _:
                return self._unknown(written)

    def _word(self, written: str, word: str) -> str:
        surroundings, is_of_project = self.origin.surroundings, self.origin.scope is not Scope.USER
        match word:
            case "userHome":
                return str(surroundings.home)
            case "workspaceFolder" | "workspaceRoot" if is_of_project:
                return str(surroundings.project)
            case "workspaceFolderBasename" if is_of_project:
                return surroundings.project.name
            case "workspaceFolder" | "workspaceRoot" | "cwd":
                note = (
                    f"{written} is the folder that the client starts the gateway in, which may be none of its projects"
                )
                self.found.notes += [note] if note not in self.found.notes else []
                return "${cwd}" if word == "cwd" else "${workspaceFolder}"
            case "pathSeparator" | "/":
                return "\\" if surroundings.system == "windows" else "/"
            case _:
                return self._unknown(written)

    def _unknown(self, written: str) -> str:
        self.found.problems.append(f"{written} means something in the client only; write the value into config.yaml")
        return written
