"""The entry to `pml serve`: turns it into a bridge if its arguments allow that, before any large import."""

from __future__ import annotations

import os
import sys

from pml_gateway import __version__
from pml_gateway.regular_files import project_files, read_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from pml_gateway.local.endpoint import Endpoint

OPTIONS = ("config", "mode", "preset", "set")
"""Options that a bridge passes on unread; with any other, the command line handles `pml serve`."""

HOME_NAME = ".pml"
CONFIG_NAME = "config.yaml"
"""The same values as in `paths.py`, which is too large for a bridge to import."""

UNSUPPORTED = 78
"""Exit code on a system where clients cannot share a gateway: the same as for a wrong configuration."""

SETTING = b"attach"
VARIABLE = "PML_LOCAL__ATTACH"
"""Text in a file and name of a variable that may switch bridges off; if found, the command line reads the settings."""

MAX_LOOKED_AT = 16 * 1024 * 1024


def bridge(words: Sequence[str]) -> list[str]:
    """Run as a bridge until the client leaves, then exit, if these arguments ask for no more than that.

    Otherwise return the arguments for the command line.
    """
    options = plain_options(words)
    if options is None or may_be_off(options, os.environ, folder()):
        return [*words]
    from pml_gateway.local.bridge import ServeAloneError, tell

    try:
        code = serve_as_bridge(options)
    except ServeAloneError as error:
        tell(str(error), "this client gets a gateway of its own")
        return [*words, "--alone"]
    # All output is written and nothing needs closing; interpreter shutdown would only make the client wait.
    os._exit(code)


def serve_as_bridge(options: Mapping[str, str | None]) -> int:
    """Run as a bridge with these options until the client leaves, and return the exit code.

    Raises:
        ServeAloneError: the client needs a gateway of its own.
    """
    from pml_gateway.local.bridge import serve, tell_error
    from pml_gateway.local.endpoint import UnsupportedSystemError

    try:
        attachment = attaching(options)
    except UnsupportedSystemError as error:
        tell_error(str(error))
        return UNSUPPORTED
    return serve(*attachment)


def attaching(options: Mapping[str, str | None]) -> tuple[Endpoint, list[str], dict[str, Any]]:
    """Return the endpoint to attach to, the command that starts a gateway there, and the first line to send.

    Raises:
        UnsupportedSystemError: clients cannot share a gateway here.
    """
    from pml_gateway.local.endpoint import Endpoint

    home, config_file = places(options, os.environ)
    hello = {
        "attach": 1,
        "version": __version__,
        # 256 bits, as `secrets` would make them, which loads OpenSSL.
        "secret": os.urandom(32).hex(),
        "pid": os.getpid(),
        "folder": folder(),
        "environ": {**os.environ},
        "options": dict(options),
    }
    return Endpoint.of(home, config_file), gateway_command(home, config_file), hello


def gateway_command(home: str, config_file: str) -> list[str]:
    """Return the command line that starts the gateway of a home and a configuration file."""
    return [sys.executable, "-P", "-m", "pml_gateway.local.server", "--home", home, "--config", config_file]


def plain_options(words: Sequence[str]) -> dict[str, str | None] | None:
    """Return the options of a `pml serve` that can be a bridge; None if the command line must handle the arguments."""
    if not words or words[0] != "serve":
        return None
    given: dict[str, str | None] = dict.fromkeys(OPTIONS)
    rest = iter(words[1:])
    for word in rest:
        name, is_assigned, value = word.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        if key not in given or name != f"--{key.replace('_', '-')}":
            return None
        if not is_assigned:
            value = next(rest, "-")
            if value.startswith("-"):
                return None
        # Several sets are one option for a bridge.
        given[key] = f"{given[key]},{value}" if key == "set" and given[key] is not None else value
    return given


def places(options: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the home and the configuration file, found in the same way as by `Paths`."""
    home = environ.get("PML_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), HOME_NAME)
    home = os.path.abspath(os.path.expanduser(home))
    config_file = options["config"] or environ.get("PML_CONFIG") or os.path.join(home, CONFIG_NAME)
    return home, os.path.abspath(os.path.expanduser(config_file))


def may_be_off(options: Mapping[str, str | None], environ: Mapping[str, str], working: str) -> bool:
    """Return True if `local.attach` may be set, in a file or in the environment."""
    if any(name.upper() == VARIABLE for name in environ):
        return True
    if _names_setting(places(options, environ)[1], is_own=False):
        return True
    return any(_names_setting(file, is_own=True) for file in project_files(working))


def _names_setting(path: str, *, is_own: bool) -> bool:
    try:
        return SETTING in read_regular(path, MAX_LOOKED_AT, is_own=is_own)
    except OSError:
        return False


def folder() -> str:
    """Return the working directory, or the root folder if it has been deleted."""
    try:
        return os.getcwd()
    except OSError:
        # The root folder has no project.
        return os.sep
