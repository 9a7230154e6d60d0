"""Which texts of a server's definition name paths that begin in the folder that the server runs in.

They are judged by how they are written, so that the answer stays the same when a file is made later. Only for words
that may mean anything does it matter what is there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path, PureWindowsPath

from pml_gateway.config.document import is_there
from pml_gateway.secrets.judgement import looks_like_a_key
from pml_gateway.secrets.names import is_secret_name
from pml_gateway.workplace import Workplace


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

_URL = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*)://(?P<rest>[^\s,;\"']*)")
_IN_FILES = re.compile(r"(?:sqlite|duckdb)\d?(?:\+\w+)?", re.IGNORECASE)
"""Databases whose address is a path behind `///`, relative unless that begins with a slash itself."""

_ON_DRIVE = re.compile(r"(?<![\w.])[A-Za-z]:[\\/][^\s:,=;\"']*")
_WORDS = re.compile(r"[\s;\"'`<>|&()]+")
_PARTS = re.compile(r"[:,=]")
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
    """Whether a path, if it is one, begins in the folder."""
    return not (path.startswith("~") or Path(path).is_absolute() or PureWindowsPath(path).is_absolute())


def is_plainly_relative(text: str) -> bool:
    """Whether nothing but a path that begins in the folder is written like this."""
    return text in (".", "..") or text.startswith(("./", "../", ".\\", "..\\"))


def argument_names_one(argument: str, workplace: Workplace, packages: Collection[str], *, is_installed: bool) -> bool:
    """Whether an argument names a path that begins in the folder, alone or among others.

    `packages` are no paths where they lie in no archive. What is installed is given repositories and models more often
    than folders, and `is_installed` says that it is.
    """
    return _names_one(argument, workplace, packages, is_installed=is_installed, looks_up=True)


def variable_names_one(name: str, value: str, workplace: Workplace, *, is_installed: bool) -> bool:
    """Whether the value of a variable does; its name says whether plain words are looked up, and tells secrets."""
    return _names_one(
        value,
        workplace,
        (),
        is_installed=is_installed or is_secret_name(name),
        looks_up=_OF_PLACES.search(name) is not None,
    )


def module_is_there(module: str, workplace: Workplace) -> bool:
    """Whether a Python module, as `-m` takes it, is one of the folder."""
    names = [f"{module.replace('.', '/')}{ending}" for ending in ("", ".py")]
    return any(is_there(place / name) for place in _places(workplace) for name in (module, *names))


def _names_one(
    text: str, workplace: Workplace, packages: Collection[str], *, is_installed: bool, looks_up: bool
) -> bool:
    if _CURRENT.search(text) is not None:
        return True
    for word in _WORDS.split(_ON_DRIVE.sub("", _URL.sub(_path_of_address, text))):
        for part in _parts(word):
            if is_plainly_relative(part) or (word in packages and _ending(part) in _ARCHIVES):
                return True
            if word in packages or not is_relative(part) or part.startswith(("$", "%")):
                continue
            if _is_written_as_path(part, is_installed=is_installed or word.startswith("@")):
                return True
            # Spaces are in names of files as well.
            if (looks_up or "/" in part or "." in part) and _is_here(part, workplace):
                return True
    return looks_up and text not in packages and is_relative(text) and _is_here(text, workplace)


def _path_of_address(match: re.Match[str]) -> str:
    """The path that an address means, where that begins in the folder."""
    path = match["rest"]
    if _IN_FILES.fullmatch(match["scheme"]):
        path = path.removeprefix("/")
        path = f"./{path}" if path and is_relative(path) and not path.startswith(":") else ""
    return f" {path} " if is_plainly_relative(path) else " "


def _parts(word: str) -> Iterator[str]:
    """The values in a word: of an option, of one that is written without a space before its value, of a list."""
    option, *rest = _PARTS.split(word)
    if option.startswith("--"):
        option = ""
    elif option.startswith("-"):
        option = option[2:]
    return (part.removeprefix("@") for part in (option, *rest))


def _ending(part: str) -> str:
    return part.rpartition(".")[2].lower() if "." in part else ""


def _is_written_as_path(part: str, *, is_installed: bool) -> bool:
    if _ending(part) in _ENDINGS or part.endswith("/"):
        return True
    if "/" not in part or _NO_FOLDERS.fullmatch(part) or looks_like_a_key(part):
        return False
    return not (is_installed and _OWNED.fullmatch(part))


def _is_here(name: str, workplace: Workplace) -> bool:
    return bool(name) and any(is_there(place / name) for place in _places(workplace))


def _places(workplace: Workplace) -> tuple[Path, Path]:
    # The home directory is where it would be looked for instead.
    return workplace.folder, workplace.home
