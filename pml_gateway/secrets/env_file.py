"""Files of `NAME=value` lines: the gateway's own secrets.env, and a server's envFile."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path

from dotenv import dotenv_values
from dotenv.parser import parse_stream

from pml_gateway.errors import ConfigurationError, SecretError
from pml_gateway.files import locked, write_atomically
from pml_gateway.paths import Paths
from pml_gateway.regular_files import read_regular

MAX_ENV_FILE_BYTES = 256 * 1024

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})

HEAD = """\
# Values of ${env:NAME} references in config.yaml. Only you can read this file.
# A line here wins over a variable of the environment; `pml secrets` lists and changes them.
"""
_FORMER_HEAD = """\
# Values of ${env:NAME} references in config.yaml that the environment does not set.
# Only you can read this file; a variable of the environment wins over a line here.
"""


def read_env_file(path: Path, written: str = "", *, is_own: bool = False) -> dict[str, str]:
    """Return the variables in `path`; errors show the path as `written` in the configuration, with its references.

    Raises:
        SecretError: the file cannot be read, is not a regular file, is too large, or is not text; with `is_own`, also
            if it belongs to another user.
    """
    shown = written or str(path)
    details = {"file": shown}
    try:
        content = read_regular(path, MAX_ENV_FILE_BYTES + 1, is_own=is_own)
    except OSError as exc:
        raise SecretError(
            f"{shown} cannot be read: {exc.strerror}", hint="check that it exists, its owner and mode", details=details
        ) from exc
    if len(content) > MAX_ENV_FILE_BYTES:
        raise SecretError(f"{shown} is larger than {MAX_ENV_FILE_BYTES} bytes", hint="name another file")
    return parse_env_text(_text(content, shown))


def parse_env_text(text: str) -> dict[str, str]:
    """Return the variables in a text of `NAME=value` lines; `$` has no special meaning."""
    return dict(_parsed(text))


@lru_cache(maxsize=2)
def _parsed(text: str) -> Mapping[str, str]:
    # Cached, because every reference of every server reads the same file.
    found = dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {name: value for name, value in found.items() if value is not None}


def stored_variables(environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> dict[str, str]:
    """Return the gateway's own stored secrets; empty if there is no file. A relative home starts in `folder`.

    Raises:
        SecretError: the file exists but cannot be read.
    """
    if not (environ.get("PML_HOME") or environ.get("HOME") or environ.get("USERPROFILE")):
        return {}
    path = Paths.from_environ(environ, folder).secrets_file
    try:
        is_there = path.exists()
    except OSError:
        # If we may not enter the folder, it holds none of our files.
        is_there = False
    return read_env_file(path) if is_there else {}


def store_variables(path: Path, values: Mapping[str, str | None], replaceable: Collection[str] = ()) -> None:
    """Set `values` in the secrets file, which only its owner can read; remove those that are None.

    Lines of other names stay as they are. Only the `replaceable` names may already have another value.

    Raises:
        ConfigurationError: the file cannot be read or written, or has another value for one of these names.
    """
    if not values:
        return
    try:
        with locked(path):
            text = _text(path.read_bytes(), str(path)) if path.exists() else HEAD
            text = text.replace(_FORMER_HEAD, HEAD)
            known = parse_env_text(text)
            for name, value in values.items():
                if name not in replaceable and known.get(name, value) != value:
                    # A concurrent run stored it: one server would get the credential of another.
                    raise ConfigurationError(f"{path} has another value of {name} by now", hint="run it again")
            write_atomically(path, _with_values(text, values))
    except OSError as exc:
        raise ConfigurationError(f"{path} cannot be written: {exc.strerror}", hint="check its owner and mode") from exc


def _with_values(text: str, values: Mapping[str, str | None]) -> str:
    lines = {name: f'{name}="{value.translate(_ESCAPES)}"\n' for name, value in values.items() if value is not None}
    kept = []
    for binding in parse_stream(io.StringIO(text)):
        original = binding.original.string
        if binding.key is not None and binding.key in values:
            blank = original[: len(original) - len(original.lstrip("\r\n"))]
            original = blank + lines.pop(binding.key, "")
        kept.append(original)
    rest = "".join(kept)
    return (rest if rest.endswith("\n") or not rest else f"{rest}\n") + "".join(lines.values())


def _text(content: bytes, shown: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Without the cause: its text would quote the bytes of a secret.
        raise SecretError(f"{shown} is not UTF-8 text", hint="save it as UTF-8", details={"file": shown}) from None
