"""How `pml serve` becomes a bridge, decided from its words before anything large is imported."""

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

OPTIONS = ("config", "mode", "preset")
"""What a bridge passes on unread; with any other word `pml serve` is the command line's."""

HOME_NAME = ".pml"
CONFIG_NAME = "config.yaml"
"""As `paths.py` has them, which is too large for a bridge."""

UNSUPPORTED = 78
"""The exit code on a system where clients cannot share a gateway: that of a configuration which has to change."""

SETTING = b"attach"
VARIABLE = "PML_LOCAL__ATTACH"
"""What may switch bridges off. Where one of them occurs, the command line reads the settings, and decides."""

MAX_LOOKED_AT = 16 * 1024 * 1024


def bridge(words: Sequence[str]) -> list[str]:
    """Be a bridge until the client leaves, and end the process, where these words ask for no more than that.

    Gives the words that the command line is to have otherwise.
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
    # Everything is written, and nothing is left to close: the time that tidying up takes is the client's.
    os._exit(code)


def serve_as_bridge(options: Mapping[str, str | None]) -> int:
    """Be a bridge with these options until the client leaves; gives the exit code.

    Raises:
        ServeAloneError: the client gets a gateway of its own.
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
    """Return where this process attaches, what starts a gateway there, and what it says first.

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
    """What starts the gateway of a home and a configuration file."""
    return [sys.executable, "-P", "-m", "pml_gateway.local.server", "--home", home, "--config", config_file]


def plain_options(words: Sequence[str]) -> dict[str, str | None] | None:
    """The options of a `pml serve` that a bridge can be; None where the command line has to look at the words."""
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
        given[key] = value
    return given


def places(options: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[str, str]:
    """The home and the configuration file, as `Paths` finds them."""
    home = environ.get("PML_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), HOME_NAME)
    home = os.path.abspath(os.path.expanduser(home))
    config_file = options["config"] or environ.get("PML_CONFIG") or os.path.join(home, CONFIG_NAME)
    return home, os.path.abspath(os.path.expanduser(config_file))


def may_be_off(options: Mapping[str, str | None], environ: Mapping[str, str], working: str) -> bool:
    """Whether `local.attach` may be set somewhere: in a file, or in the environment."""
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
    """Return the working directory."""
    try:
        return os.getcwd()
    except OSError:
        # Deleted under us: there is no project then.
        return os.sep
