"""References to secrets in the configuration: `${env:NAME}` and `${file:PATH}`, and their resolution.

The gateway's own secrets file takes precedence over the environment, which another project may have set. In the
definitions of servers, `${cwd}` and `${workspaceFolder}` stand for the client's working directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pml_gateway.errors import SecretError
from pml_gateway.regular_files import RefusedFileError, read_regular
from pml_gateway.secrets.env_file import stored_variables
from pml_gateway.secrets.known import KNOWN_SECRETS
from pml_gateway.working_directory import WorkingDirectory

MAX_SECRET_BYTES = 64 * 1024
"""Maximum size of a secret's file; keys and certificates are far smaller, so a larger file is a mistaken path."""

_REFERENCE = re.compile(r"(?P<escape>\$)?\$\{(?P<kind>env|file):(?P<body>[^{}]*)(?P<close>\})?")
_FOLDER = re.compile(r"(?P<kept>\$)?(?P<folder>\$\{(?:cwd|workspaceFolder)\})")
_REFERENCE_OR_FOLDER = re.compile(f"{_FOLDER.pattern}|{_REFERENCE.pattern}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class SecretReference:
    """One `${env:NAME}`, `${env:NAME:-default}` or `${file:PATH}` in a text."""

    kind: Literal["env", "file"]
    name: str
    default: str | None = None

    @property
    def label(self) -> str:
        """Return the reference as written, without its default (which may be a secret)."""
        return f"${{{self.kind}:{self.name}}}"


def references(text: str) -> tuple[SecretReference, ...]:
    """Return the references in `text`, in order; `$${env:NAME}` is a literal, not a reference."""
    return tuple(_reference(match) for match in _REFERENCE.finditer(text) if not match["escape"])


def is_reference(text: str) -> bool:
    """Return True if `text` is exactly one reference without a literal default."""
    match = _REFERENCE.fullmatch(text)
    return match is not None and not match["escape"] and bool(match["close"]) and not _reference(match).default


def resolve(text: str, environ: Mapping[str, str] = os.environ, form: Callable[[str], str] = str) -> str:
    """Replace every reference in `text`; inserted values are not scanned again, and are masked in logs from then on.

    Args:
        text: the text.
        environ: the variables.
        form: returns a value as it is inserted, for example quoted for a URL.

    Raises:
        SecretError: a variable or file is missing; names it, but never its value.
    """
    working_directory = WorkingDirectory.here(environ)
    return _REFERENCE.sub(lambda match: form(_remembered(match, working_directory)), text)


def resolve_in(text: str, working_directory: WorkingDirectory) -> str:
    """Resolve a text of a server's definition like `resolve`, but with a working directory's variables and folder.

    Raises:
        SecretError: see `resolve`.
    """

    def value(match: re.Match[str]) -> str:
        if match["folder"] is None:
            return _remembered(match, working_directory)
        return match["folder"] if match["kept"] else str(working_directory.folder)

    return _REFERENCE_OR_FOLDER.sub(value, text)


def folder_reference(text: str) -> str | None:
    """Return the first `${cwd}` or `${workspaceFolder}` in `text` that is not escaped."""
    return next((match["folder"] for match in _FOLDER.finditer(text) if not match["kept"]), None)


def _reference(match: re.Match[str]) -> SecretReference:
    if match["kind"] == "file":
        return SecretReference("file", match["body"].strip())
    name, separator, default = match["body"].partition(":-")
    return SecretReference("env", name.strip(), default if separator else None)


def _remembered(match: re.Match[str], working_directory: WorkingDirectory) -> str:
    value = _value(match, working_directory)
    if not match["escape"]:
        KNOWN_SECRETS.remember(value)
    return value


def _value(match: re.Match[str], working_directory: WorkingDirectory) -> str:
    if match["escape"]:
        return match[0][1:]
    reference = _reference(match)
    if not match["close"]:
        raise SecretError(f"a ${{{reference.kind}:...}} reference is not closed", hint="add the missing `}`")
    if reference.kind == "file":
        return _file(reference, working_directory)
    if not _NAME.match(reference.name):
        raise SecretError(f"{reference.label} names no environment variable", hint="write ${env:NAME}")
    environ = working_directory.environ
    value = stored_variables(environ, working_directory.folder).get(reference.name) or environ.get(reference.name)
    if value:
        return value
    if reference.default is not None:
        return reference.default
    state = "empty" if environ.get(reference.name) == "" else "not set"
    raise SecretError(
        f"environment variable {reference.name} is {state}",
        hint=f"store it: pml secrets set {reference.name}; or export it before starting pml, or give a default: "
        f"${{env:{reference.name}:-default}}",
        details={"variable": reference.name},
    )


def _file(reference: SecretReference, working_directory: WorkingDirectory) -> str:
    path = working_directory.path(reference.name)
    details = {"file": str(path)}
    if not reference.name.startswith("~") and not Path(reference.name).is_absolute():
        raise SecretError(
            f"secret file {reference.name!r} is not an absolute path",
            hint="start it with / or ~/; the working directory differs between clients",
            details=details,
        )
    try:
        content = read_regular(path, MAX_SECRET_BYTES + 1)
        if len(content) > MAX_SECRET_BYTES:
            raise SecretError(
                f"secret file {path} is larger than {MAX_SECRET_BYTES} bytes", hint="name another file", details=details
            )
        value = content.decode().rstrip("\r\n")
    except (FileNotFoundError, NotADirectoryError, RefusedFileError) as exc:
        raise SecretError(
            f"secret file {path} does not exist or is no regular file", hint="create it", details=details
        ) from exc
    except OSError as exc:
        raise SecretError(
            f"secret file {path} cannot be read: {exc.strerror}", hint="check its owner and mode", details=details
        ) from exc
    except UnicodeDecodeError:
        # Without the cause: its text would quote the bytes of the secret.
        raise SecretError(
            f"secret file {path} is not UTF-8 text", hint="store the secret as text", details=details
        ) from None
    if not value:
        raise SecretError(f"secret file {path} is empty", hint="write the secret into it", details=details)
    return value
