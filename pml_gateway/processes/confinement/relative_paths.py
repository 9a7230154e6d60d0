"""Paths in the texts of a server's definition that begin in the client's folder: found, and made absolute.

They are judged by how they are written, so that the answer stays the same when a file is made later. Only for words
that may mean anything does it matter what is there.
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


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ENDINGS = _set(
    """
    db db3 sqlite sqlite3 duckdb sql csv tsv parquet json jsonl json5 ndjson yaml yml toml ini cfg conf env lock xml
    txt md mdx rst log html css pdf docx xlsx pptx png jpg jpeg svg ipynb pem crt key
    py pyi js mjs cjs jsx ts mts cts tsx sh bash zsh ps1 bat rb php go lua jar whl tgz gz zip
    """
)
"""Of files with data, settings or programs; none of a domain that many hosts are in, and no version ends like this."""

_ARCHIVES = frozenset({"whl", "tgz", "gz", "zip"})
"""Of files that package runners install from; `chart.js` is a package."""

SUBCOMMANDS = _set("mcp serve server start run stdio http sse launch dev")
"""Words that servers are told to start with, also beside a folder of that name."""

_URL = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*)://(?P<rest>[^\s,;\"']*)")
_IN_FILES = re.compile(r"(?:sqlite|duckdb)\d?(?:\+\w+)?", re.IGNORECASE)
"""Databases whose address is a path behind `///`, relative unless that begins with a slash itself."""

_ON_DRIVE = re.compile(r"(?<![\w.])[A-Za-z]:[\\/][^\s:,=;\"']*")
_WORDS = re.compile(r"[\s;\"'`<>|&()]+")
_PARTS = re.compile(r"[:,=]")
_SEPARATORS = re.compile(f"({_PARTS.pattern})")
_CURRENT = re.compile(r"\$\{?(?:OLD)?PWD\b|%CD%", re.IGNORECASE)

_NO_FOLDERS = re.compile(
    # time zones, types of media, versions and networks, programs by name and version, and what lies on a host
    r"(?:Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc|US|Canada)/[\w/+-]+|"
    r"(?:application|audio|font|image|message|multipart|text|video|\*)/[\w.+*-]+|"
    r"[\d./]+|[A-Za-z]+/\d[\d.]*|"
    r"(?:[\w-]+\.)+(?:com|org|net|io|dev|ai|app|co|cloud|internal|local)/.*"
)
"""Words with a slash that everybody writes and that are no paths."""

_OWNED = re.compile(r"[^/]+/[^/]+")
"""A repository and its owner, a model and its maker."""

_OF_PLACES = re.compile(r"path|dir|folder|file|root|home|data|db|stor|config|cache|workspace", re.IGNORECASE)
"""In the name of a variable whose value may well be a folder; in others, `dev` and `docs` are no folders."""


def is_relative(path: str) -> bool:
    """Return True if a path, if it is one, begins in the folder."""
    return not (path.startswith("~") or Path(path).is_absolute() or PureWindowsPath(path).is_absolute())


def is_plainly_relative(text: str) -> bool:
    """Return True if only a path that begins in the folder is written like this."""
    return text in (".", "..") or text.startswith(("./", "../", ".\\", "..\\"))


@dataclass(frozen=True, slots=True)
class Reading:
    """A text with its paths made absolute; one that may be a path or a word stays, and makes it `unclear`."""

    text: str
    names_path: bool = False
    is_unclear: bool = False

    @property
    def may_name_path(self) -> bool:
        """Return True if the text names a path that begins in the folder, or may do so."""
        return self.names_path or self.is_unclear


@dataclass(frozen=True, slots=True)
class PathReader:
    """Reads texts from the folder in which relative paths begin.

    `packages` are words that name packages and are paths only if they name an archive. `is_installed` is True for
    programs that are given repositories and models more often than folders. `elsewhere` are further folders in which
    plain words are looked up.
    """

    folder: Path
    elsewhere: Sequence[Path] = ()
    packages: Collection[str] = ()
    is_installed: bool = False

    def argument(self, text: str, before: str = "") -> Reading:
        """Read an argument; the one `before` it may be an option of which it is the value."""
        if text in SUBCOMMANDS and not before.startswith("-"):
            return Reading(text)
        return self._read(text, is_installed=self.is_installed, looks_up=True)

    def variable(self, name: str, value: str) -> Reading:
        """Read a variable; its name says whether plain words are looked up, and tells secrets."""
        is_installed = self.is_installed or is_secret_name(name)
        return self._read(value, is_installed=is_installed, looks_up=_OF_PLACES.search(name) is not None)

    def has_module(self, module: str) -> bool:
        """Return True if a Python module, as `-m` takes it, lies in the folder."""
        names = [f"{module.replace('.', '/')}{ending}" for ending in ("", ".py")]
        return any(self._has(name) for name in (module, *names))

    def absolute(self, path: str) -> str:
        """Return a relative path from the folder; links count where it leads upwards, as they do to the system."""
        folder = self.folder.resolve() if ".." in Path(path).parts else self.folder
        return os.path.normpath(folder / path)

    def _read(self, text: str, *, is_installed: bool, looks_up: bool) -> Reading:
        if _CURRENT.search(text) is not None:
            return Reading(text, is_unclear=True)
        if is_plainly_relative(text) and _PARTS.search(text) is None:
            return Reading(self.absolute(text), names_path=True)
        address = _URL.fullmatch(text)
        if address is not None and _path_of_address(address).strip():
            path = self.absolute(address["rest"].removeprefix("/"))
            return Reading(f"{address['scheme']}:///{path}", names_path=True)
        without_addresses = _ON_DRIVE.sub("", _URL.sub(_path_of_address, text))
        words = _WORDS.split(without_addresses)
        read = [self._read_word(word, is_installed=is_installed, looks_up=looks_up) for word in words]
        # Of several words, or with an address in it, it stays as it is.
        found = read[0] if words == [text] else Reading(text, is_unclear=any(each.may_name_path for each in read))
        if found.may_name_path or not (looks_up and text not in self.packages and is_relative(text)):
            return found
        # Spaces are in names of files as well.
        return Reading(text, is_unclear=self._has(text))

    def _read_word(self, word: str, *, is_installed: bool, looks_up: bool) -> Reading:
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
        return Reading("".join(tokens), names_path, is_unclear)

    def _has(self, name: str) -> bool:
        return bool(name) and any(is_there(place / name) for place in (self.folder, *self.elsewhere))


def _option(first: str) -> tuple[str, str]:
    """Split what an option is called from a value that is written without a space behind it."""
    if first.startswith("--"):
        return first, ""
    return (first[:2], first[2:]) if first.startswith("-") else ("", first)


def _path_of_address(match: re.Match[str]) -> str:
    """Return the path that an address means, if it begins in the folder."""
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
