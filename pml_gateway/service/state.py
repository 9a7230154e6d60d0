"""What `systemctl` and `launchctl` say of the service, asked within limits."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from pml_gateway.errors import GatewayError

SHORT_SECONDS = 15.0
"""For a question, or a command that waits for nothing."""


class NoManagerError(GatewayError):
    """What starts programs at login is not there, or not for this session."""


@dataclass(frozen=True, slots=True)
class Absence:
    """How a command says that nobody answers in this session: the `sign` in its words, and what that means."""

    sign: re.Pattern[str]
    meaning: str
    hint: str


@dataclass(frozen=True, slots=True)
class ServiceState:
    """Whether it starts at login, and how it is now."""

    is_enabled: bool
    is_running: bool
    pid: int | None = None
    failure: str = ""


def ask(*words: str, seconds: float = SHORT_SECONDS, absence: Absence | None = None) -> str:
    """What a command prints.

    Raises:
        NoManagerError: there is no such command, or it says so by the sign of an `absence`.
        GatewayError: it failed, or took longer than `seconds`.
    """
    shown = " ".join(words)
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", timeout=seconds
        )
    except FileNotFoundError:
        raise NoManagerError(f"there is no {words[0]} on this machine") from None
    except subprocess.TimeoutExpired:
        raise GatewayError(f"{shown}: no answer in {seconds:g} s") from None
    except OSError as error:
        raise GatewayError(f"{shown}: {error.strerror or error}") from error
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        message = f"{shown}: {lines[0] if lines else f'exit code {done.returncode}'}"
        if absence is not None and absence.sign.search(message):
            raise NoManagerError(f"{absence.meaning} ({message})", hint=absence.hint)
        raise GatewayError(message)
    return done.stdout.strip()
