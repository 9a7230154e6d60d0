"""A second process of the gateway, which has imported everything, waits, and takes its place where it is killed.

It is forked before the gateway has threads, servers or clients, so that it has nothing of theirs, and most of its
memory is the gateway's own. On Linux alone: elsewhere a process cannot go on after a fork for certain.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pml_gateway.local.endpoint import remove, write_owned
from pml_gateway.local.starting import own_environ
from pml_gateway.log import get_logger

if sys.platform == "linux":
    import fcntl

logger = get_logger(__name__)

SHORT_LIFE_SECONDS = 1.0
"""A gateway that is killed sooner after its start may be killed by what it starts with: clients decide then."""

PIPE_BYTES = 1024 * 1024
"""What a will may take before the spare reads it: the variables of a process are a tenth of that."""

PREPARE_SECONDS = 5.0
"""When the spare does what takes time: a gateway that begins, and its first clients, want the processor."""

CHUNK = 65_536

NAME = b"pml_gateway.local.spare"
"""In its command line."""


@dataclass(frozen=True, slots=True)
class Will:
    """What the next gateway is to be.

    Args:
        started_by: `client` where it ends by itself once nobody uses it.
        is_used: whether a client is attached.
        http: where it listens, and for whom, as the command `http` says it.
    """

    started_by: str
    is_used: bool = False
    http: Mapping[str, Any] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether anybody would miss the gateway."""
        return self.is_used or self.started_by != "client"

    @property
    def lasting(self) -> Will | None:
        """What is written down of it: what `pml up` asked for, without the variables that may hold secrets."""
        if self.started_by != "up":
            return None
        http = self.http
        if http is not None:
            environ = own_environ(http["owner"]["environ"])
            # The address of a proxy may hold a password.
            kept = {name: value for name, value in environ.items() if "@" not in value}
            http = {**http, "owner": {**http["owner"], "environ": kept}}
        return replace(self, is_used=False, http=http)


class WrittenWill:
    """What the next gateway is to be, in a file: its spare may be killed together with a gateway."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._said: Will | None = None

    def tell(self, will: Will) -> None:
        """Have it known from now on."""
        lasting = will.lasting
        if lasting is None:
            self.forget()
        elif lasting != self._said:
            try:
                write_owned(self._path, json.dumps({"process": os.getpid(), **asdict(lasting)}).encode())
            except OSError as error:
                logger.warning("%s: %s; after a kill, a client starts a gateway as if for itself", self._path, error)
            self._said = lasting

    def forget(self) -> None:
        """Leave nothing to the next one."""
        remove(self._path)
        self._said = None


def written_will(path: str) -> tuple[Will, int] | None:
    """What a gateway left that was killed, and its process id; None where none was to last."""
    try:
        told = json.loads(Path(path).read_bytes())
        process = int(told.pop("process"))
        will = Will(**told).lasting
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return None if will is None else (will, process)


class Spare:
    """The second process, as the gateway has it."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid: int | None = pid
        self._pipe = pipe
        self._said: Will | None = None

    @property
    def pid(self) -> int | None:
        """Its process id, for as long as it lives."""
        if self._pid is not None and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._pid = None
            os.close(self._pipe)
        return self._pid

    def tell(self, will: Will) -> None:
        """Have it know what it is to be from now on."""
        if self.pid is None or will == self._said:
            return
        line = json.dumps(asdict(will)).encode() + b"\n"
        try:
            is_told = os.write(self._pipe, line) == len(line)
        except OSError:
            is_told = False
        if is_told:
            self._said = will
        else:
            # It has ended, or reads nothing: without it, the next client starts a gateway.
            self.dismiss()

    def dismiss(self) -> None:
        """End it."""
        pid, self._pid = self.pid, None
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(self._pipe)


def fork_spare(will: Will, held: Collection[int], prepare: Callable[[], None]) -> Spare | Will | None:
    """Have a spare from now on; None where there can be none.

    Returns twice: at once in the gateway, with its spare; and in the spare once the gateway was killed, with its will.
    A spare that is not needed ends in here.

    Args:
        will: what the next gateway is to be, until the spare is told otherwise.
        held: descriptors that the gateway alone is to have.
        prepare: what the spare does beside, so that it need not be done later.
    """
    if sys.platform != "linux":
        return None
    reading, writing = os.pipe()
    with suppress(OSError):
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    pid = os.fork()
    if pid:
        os.close(reading)
        os.set_blocking(writing, False)
        return Spare(pid, writing)
    try:
        for each in (writing, *held):
            os.close(each)
        left = _waited(reading, will, prepare)
        os.close(reading)
        if left is not None:
            os.setsid()
            _rename(b".spare ", b".server")
            return left
    except BaseException as error:  # noqa: BLE001
        os.write(2, f"the spare of the gateway ended: {error!r}\n".encode())
    os._exit(0)


def spare_of(gateway: int) -> int | None:
    """The spare of a gateway that cannot be asked, by its name and parent; None where the system shows none."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent == gateway and NAME in (process / "cmdline").read_bytes():
                return int(process.name)
    return None


def _waited(reading: int, will: Will, prepare: Callable[[], None]) -> Will | None:
    """What a gateway left that was killed; None where nobody misses it, or it did not live long."""
    # Whoever signals the whole group means the gateway, and this with it.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)
    _rename(b".server", b".spare ")
    began, said = time.monotonic(), b""
    is_prepared = False
    while True:
        patience = None if is_prepared else max(began + PREPARE_SECONDS - time.monotonic(), 0)
        if not select.select([reading], [], [], patience)[0]:
            prepare()
            is_prepared = True
            continue
        chunk = os.read(reading, CHUNK)
        if not chunk:
            break
        *whole, said = (said + chunk).split(b"\n")
        if whole:
            will = Will(**json.loads(whole[-1]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return will if will.is_wanted and time.monotonic() - began >= SHORT_LIFE_SECONDS else None


def _rename(before: bytes, after: bytes) -> None:
    """Be told from the gateway in lists of processes, by a word of the same length in the command line."""
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        begins, ends = int(fields[45]), int(fields[46])
        at = ctypes.string_at(begins, ends - begins).find(before)
        if at >= 0:
            ctypes.memmove(begins + at, after, len(after))
    except (OSError, ValueError, IndexError):
        # It is a name, and nothing depends on it.
        return
