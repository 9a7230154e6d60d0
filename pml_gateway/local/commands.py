"""Commands to the gateway of this machine: one line each, answered by one line."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from pml_gateway.errors import GatewayError
from pml_gateway.local.endpoint import (
    POLL_SECONDS,
    Endpoint,
    GatewayWatch,
    NoListenerError,
    UnsafeEndpointError,
    remove,
)
from pml_gateway.owner.operations import OfProcess, ResultT
from pml_gateway.owner.sockets import MAX_LINE, request, result_of

CONNECT_SECONDS = 2.0
START_SECONDS = 20.0
"""Seconds that a gateway may take from its start to its first answer: two usually, more if the machine is busy with a
login."""

PROGRESS_INTERVAL = 1.0
"""Seconds between progress reports to a waiting caller."""

KILL_SECONDS = 5.0
"""Seconds that a hanging gateway gets to end after SIGTERM, which it may still handle, and then after SIGKILL."""


class StuckGatewayError(GatewayError):
    """A running gateway that does not answer or end; `process` is 0 if its process id is unknown."""

    def __init__(self, endpoint: Endpoint, process: int, what: str) -> None:
        who = f" (process {process})" if process else ""
        super().__init__(
            f"the gateway of this machine{who} runs and {what}",
            hint="; ".join(filter(None, ("`pml down` ends it", endpoint.where_logged))),
        )
        self.process = process


def ask(
    endpoint: Endpoint,
    operation: OfProcess[ResultT],
    seconds: float,
    arguments: Mapping[str, object] = MappingProxyType({}),
    waiting: Callable[[float], None] = lambda _: None,
    *,
    awaits_start: bool = True,
) -> ResultT | None:
    """Return the result of an operation of the gateway, or None if no gateway runs.

    If the gateway ends instead of answering, its successor is asked; without a successor, the answer is None.

    Args:
        endpoint: where the gateway listens.
        operation: the operation.
        seconds: time limit for the answer.
        arguments: arguments of the operation.
        waiting: called every second with the number of seconds left.
        awaits_start: True to wait longer for a gateway that has just started, until it should be able to answer.

    Raises:
        StuckGatewayError: the gateway does not answer in time.
        GatewayError: the gateway cannot be reached, or answers with an error.
    """
    began = time.monotonic()
    asked = endpoint.living()
    try:
        return _asked(endpoint, operation, arguments, seconds, waiting, awaits_start)
    except NoListenerError:
        return None
    except OSError as error:
        if isinstance(error, ConnectionError) and asked is not None and endpoint.living() != asked:
            left = seconds - (time.monotonic() - began)
            return ask(endpoint, operation, max(left, 0), arguments, waiting, awaits_start=awaits_start)
        # The system's text for a timeout is not helpful.
        waited = max(seconds, round(time.monotonic() - began))
        what = f"no answer in {waited:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        if error.filename is not None:
            what = f"{error.filename}: {what}"
        if isinstance(error, TimeoutError) and not awaits_start and _is_starting(endpoint):
            what += "; it has just begun, and may be starting"
        living = None if isinstance(error, UnsafeEndpointError) else endpoint.living()
        if living is not None:
            raise StuckGatewayError(endpoint, living, f"does not answer: {what}") from error
        raise GatewayError(f"the gateway of this machine: {what}", hint=endpoint.where_logged) from error
    except GatewayError as error:
        raise GatewayError(f"the gateway of this machine: {error}") from None


def _asked(
    endpoint: Endpoint,
    operation: OfProcess[ResultT],
    arguments: Mapping[str, object],
    seconds: float,
    waiting: Callable[[float], None],
    awaits_start: bool,
) -> ResultT:
    until = time.monotonic() + seconds
    with endpoint.connect(min(seconds, CONNECT_SECONDS)) as connection:
        connection.settimeout(min(seconds, PROGRESS_INTERVAL))
        connection.sendall(request(operation, arguments))
        said = b""
        while not said.endswith(b"\n") and len(said) < MAX_LINE:
            try:
                part = connection.recv(65_536)
            except TimeoutError:
                left = until - time.monotonic()
                if left <= 0 and not (awaits_start and _is_starting(endpoint)):
                    raise
                waiting(max(left, 0))
                continue
            if not part:
                raise ConnectionResetError("it left without an answer")
            said += part
    try:
        return result_of(operation, said)
    except ValueError as error:
        raise ConnectionError(f"its answer is none: {error}") from None


def _is_starting(endpoint: Endpoint) -> bool:
    """Return True if the gateway may still be loading: it listens before it can answer."""
    age = endpoint.age()
    # A negative age means that the clock was set back.
    return age is not None and 0 <= age < START_SECONDS


def wait_for_end(gateway: GatewayWatch, seconds: float) -> bool:
    """Wait until a gateway and all that it started have ended; return False if they have not within `seconds`.

    Another gateway may run by then.
    """
    until = time.monotonic() + seconds
    while not gateway.has_ended:
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_SECONDS)
    return True


def kill(endpoint: Endpoint, gateway: GatewayWatch) -> bool:
    """Kill a gateway that hangs, with its servers; return False if it is still running."""
    process = gateway.process
    if not process:
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(process, number)
        if wait_for_end(gateway, KILL_SECONDS):
            tidy(endpoint)
            return True
    return False


def tidy(endpoint: Endpoint) -> None:
    """Remove the files of a killed gateway, including the request of `pml up`, unless another gateway runs by now."""
    life = endpoint.take_life()
    if life is not None:
        remove(endpoint.socket)
        remove(endpoint.up_request)
        endpoint.leave(life)
        os.close(life)
