"""Relative paths in a server's definition, which start in the client's folder: finding them and making them absolute.

They are recognized by their form, so that the result does not change when a file is created later. Only for ambiguous
words, existing files matter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from pml_gateway.config.document import is_there
from pml_gateway.secrets.judgement import looks_like_a_key
from pml_gateway.secrets.names import is_secret_name

_ARCHIVES = frozenset({"whl", "tgz", "gz", "zip"})
"""Extensions of files that package runners install from; `chart.js` is a package."""

_URL = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*)://(?P<rest>[^\s,;\"']*)")

_IN_FILES = re.compile(r"(?:sqlite|duckdb)\d?(?:\+\w+)?", re.IGNORECASE)
"""Databases whose address has a path after `///`, which is relative unless it starts with another slash."""

_ON_DRIVE = re.compile(r"(?<![\w.])[A-Za-z]:[\\/][^\s:,=;\"']*")
_WORDS = re.compile(r"[\s;\"'`<>|&()]+")
_PARTS = re.compile(r"[:,=]")
_SEPARATORS = re.compile(f"({_PARTS.pattern})")
_CURRENT = re.compile(r"\$\{?(?:OLD)?PWD\b|%CD%", re.IGNORECASE)

_NO_FOLDERS = re.compile(
    # time zones, media types, versions and networks, programs by name and version, and paths on a host
    r"(?:Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc|US|Canada)/[\w/+-]+|"
    r"(?:application|audio|font|image|message|multipart|text|video|\*)/[\w.+*-]+|"
    r"[\d./]+|[A-Za-z]+/\d[\d.]*|"
    r"(?:[\w-]+\.)+(?:com|org|net|io|dev|ai|app|co|cloud|internal|local)/.*"
)
"""Common words with a slash that are not paths."""

_OWNED = re.compile(r"[^/]+/[^/]+")
"""A repository with its owner, or a model with its maker."""

_OF_PLACES = re.compile(r"path|dir|folder|file|root|home|data|db|stor|config|cache|workspace", re.IGNORECASE)
"""Parts of names of variables whose value may be a folder; elsewhere, `dev` and `docs` are not folders."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ENDINGS = _set(
    """
    db db3 sqlite sqlite3 duckdb sql csv tsv parquet json jsonl json5 ndjson yaml yml toml ini cfg conf env lock xml
    txt md mdx rst log html css pdf docx xlsx pptx png jpg jpeg svg ipynb pem crt key
    py pyi js mjs cjs jsx ts mts cts tsx sh bash zsh ps1 bat rb php go lua jar whl tgz gz zip
    """
)
"""Extensions of data, settings and program files; none is a common top-level domain, or the end of a version."""


SUBCOMMANDS = _set("mcp serve server start run stdio http sse launch dev")
"""Words that servers are commonly started with, even if a folder has that name."""


def is_relative(path: str) -> bool:
    """Return True if a text, taken as a path, is relative."""
    return not (path.startswith("~") or Path(path).is_absolute() or PureWindowsPath(path).is_absolute())


def is_plainly_relative(text: str) -> bool:
    """Return True if a text can only be a relative path."""
    return text in (".", "..") or text.startswith(("./", "../", ".\\", "..\\"))


@dataclass(frozen=True, slots=True)
class CommandReading:
    """A text with its relative paths made absolute; ambiguous words stay as they are, and set `is_unclear`."""

    text: str
    names_path: bool = False
    is_unclear: bool = False

    @property
    def may_name_path(self) -> bool:
        """Return True if the text contains, or may contain, a relative path."""
        return self.names_path or self.is_unclear


@dataclass(frozen=True, slots=True)
class PathReader:
    """A reader of texts relative to the folder in which relative paths start.

    `packages` are names of packages, which are paths only if they name an archive. `is_installed` is True for programs
    whose arguments are more often repositories and models than folders. `elsewhere` are further folders in which plain
    words are looked up.
    """

    folder: Path
    elsewhere: Sequence[Path] = ()
    packages: Collection[str] = ()
    is_installed: bool = False

    def argument(self, text: str, before: str = "") -> CommandReading:
        """Read an argument, which may be the value of the option `before` it."""
        if text in SUBCOMMANDS and not before.startswith("-"):
            return CommandReading(text)
        return self._read(text, is_installed=self.is_installed, looks_up=True)

    def variable(self, name: str, value: str) -> CommandReading:
        """Read a variable; its name decides if plain words are looked up, and if it is a secret."""
        is_installed = self.is_installed or is_secret_name(name)
        return self._read(value, is_installed=is_installed, looks_up=_OF_PLACES.search(name) is not None)

    def has_module(self, module: str) -> bool:
        """Return True if a Python module, as given to `-m`, is in the folder."""
        names = [f"{module.replace('.', '/')}{ending}" for ending in ("", ".py")]
        return any(self._has(name) for name in (module, *names))

    def absolute(self, path: str) -> str:
        """Return the absolute form of a relative path; links are resolved if it leads upwards, as the system does."""
        folder = self.folder.resolve() if ".." in Path(path).parts else self.folder
        return os.path.normpath(folder / path)

    def _read(self, text: str, *, is_installed: bool, looks_up: bool) -> CommandReading:
        if _CURRENT.search(text) is not None:
            return CommandReading(text, is_unclear=True)
        if is_plainly_relative(text) and _PARTS.search(text) is None:
            return CommandReading(self.absolute(text), names_path=True)
        address = _URL.fullmatch(text)
        if address is not None and _path_of_address(address).strip():
            path = self.absolute(address["rest"].removeprefix("/"))
            return CommandReading(f"{address['scheme']}:///{path}", names_path=True)
        without_addresses = _ON_DRIVE.sub("", _URL.sub(_path_of_address, text))
        words = _WORDS.split(without_addresses)
        read = [self._read_word(word, is_installed=is_installed, looks_up=looks_up) for word in words]
        # A text of several words, or one that contains an address, stays as it is.
        found = (
            read[0] if words == [text] else CommandReading(text, is_unclear=any(each.may_name_path for each in read))
        )
        if found.may_name_path or not (looks_up and text not in self.packages and is_relative(text)):
            return found
        # File names may contain spaces.
        return CommandReading(text, is_unclear=self._has(text))

    def _read_word(self, word: str, *, is_installed: bool, looks_up: bool) -> CommandReading:
        tokens = _SEPARATORS.split(word)
        names_path = is_unclear = False
        for at in range(0, len(tokens), 2):
            option, part = _option(tokens[at]) if at == 0 else ("", tokens[at])
            file, part = ("@", part[1:]) if part.startswith("@") else ("", part)
            is_package = word in self.packages
            if is_plainly_relative(part) or (is_package and _ending(part) in _ARCHIVES):
                is_path = True
            elif is_package or not part or not is_relative(part) or part.startswith(("$", "%")):
                continue
            else:
                is_path = _ending(part) in _ENDINGS or part.endswith("/")
            if is_path:
                tokens[at] = f"{option}{file}{self.absolute(part)}"
                names_path = True
                continue
            is_unclear |= _may_be_path(part, is_installed=is_installed or word.startswith("@")) or (
                (looks_up or "/" in part or "." in part) and self._has(part)
            )
        return CommandReading("".join(tokens), names_path, is_unclear)

    def _has(self, name: str) -> bool:
        return bool(name) and any(is_there(place / name) for place in (self.folder, *self.elsewhere))


def _option(first: str) -> tuple[str, str]:
    """Split an option from a value attached to it without a space."""
    if first.startswith("--"):
        return first, ""
    return (first[:2], first[2:]) if first.startswith("-") else ("", first)


def _path_of_address(match: re.Match[str]) -> str:
    """Return the path in an address, if it is relative."""
    path = match["rest"]
    if _IN_FILES.fullmatch(match["scheme"]):
        path = path.removeprefix("/")
        path = f"./{path}" if path and is_relative(path) and not path.startswith(":") else ""
    return f" {path} " if is_plainly_relative(path) else " "


def _ending(part: str) -> str:
    return part.rpartition(".")[2].lower() if "." in part else ""


def _may_be_path(part: str, *, is_installed: bool) -> bool:
    if "/" not in part or _NO_FOLDERS.fullmatch(part) or looks_like_a_key(part):
        return False
    return not (is_installed and _OWNED.fullmatch(part))
