"""Log lines on stderr, as text or JSON, that identify the request and never contain a secret."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from pml_gateway.config.settings import LogSettings
from pml_gateway.log import ROOT
from pml_gateway.secrets.judgement import MASK
from pml_gateway.secrets.known import KNOWN_SECRETS, without_secrets
from pml_gateway.telemetry.log_file import LogFile, Repeats
from pml_gateway.telemetry.trace import CURRENT_TRACE
from pml_gateway.text import escaped, escaped_json, utc

FIELDS = ("worker", "request_id", "trace_id", "client", "upstream", "tool", "code", "seconds")
"""Fields of a line in addition to time, level, logger and message, if known."""

MAX_MESSAGE = 8000
"""Maximum characters of a message, so that a server's text cannot fill the log."""

_LIBRARY_LEVELS = {
    # The SDK logs whole tracebacks, results and URLs for errors that the gateway receives anyway.
    "mcp": logging.CRITICAL,
    "client": logging.CRITICAL,
    "httpx2": logging.CRITICAL,
    # Transport errors reach callers as well; anything else is worth a line.
    "aiohttp": logging.ERROR,
    "asyncio": logging.ERROR,
    "uvicorn": logging.WARNING,
    "opentelemetry": logging.WARNING,
}
_COLOURS = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31;1"}

_log_file: LogFile | None = None
_worker = ""


def configure(
    settings: LogSettings | None = None,
    stream: IO[str] | None = None,
    *,
    colour: bool = True,
    servers: Collection[str] = (),
) -> None:
    """Send all records to stderr: the gateway's from the level on, libraries' only if they are useful to an operator.

    Text about `servers` is not taken for the value of a secret, whatever their names are.
    """
    given = settings or LogSettings()
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    as_json = given.format == "json"
    plain = frozenset(servers)
    handler.setFormatter(JsonFormatter(plain) if as_json else TextFormatter(plain, colour=colour and target.isatty()))
    handler.addFilter(note_request)
    handler.addFilter(Repeats())
    if _log_file is not None and target is sys.stderr:
        handler.addFilter(_log_file)
    own = logging.getLogger(ROOT)
    own.handlers[:] = [handler]
    own.setLevel(given.level.upper())
    own.propagate = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name, level in _LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(level)


def rotate(path: Path) -> None:
    """Rotate the log at `path` from the next `configure` on, if it is this process's stderr."""
    global _log_file
    _log_file = LogFile(path)


def name_worker(number: str) -> None:
    """Have each line name the worker that this process is."""
    global _worker
    _worker = number


def note_request(record: logging.LogRecord) -> bool:
    """Add worker and current request to a record; as a handler's filter, this also sees records of libraries."""
    record.worker = _worker
    trace = CURRENT_TRACE.get()
    if trace is not None and not hasattr(record, "request_id"):
        record.request_id = trace.request_id
        record.trace_id = trace.trace_id
        record.client = trace.client
    return True


class JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON object per line."""

    def __init__(self, plain: Collection[str] = ()) -> None:
        super().__init__()
        self._plain = plain

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as JSON: ts, level, logger, message, then the known fields."""
        line: dict[str, object] = {
            "ts": utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record, self._plain),
            **dict(_fields(record)),
        }
        if record.exc_info:
            line["exception"] = _exception(record, self._plain)
        return escaped_json(line)


class TextFormatter(logging.Formatter):
    """A formatter for people that writes one line; a traceback follows on separate lines."""

    def __init__(self, plain: Collection[str] = (), *, colour: bool) -> None:
        super().__init__()
        self._plain = plain
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as `time level logger: message key=value`."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level, code = record.levelname, _COLOURS.get(record.levelno)
        shown = f"\x1b[{code}m{level}\x1b[0m" if self._colour and code else level
        fields = "".join(f" {name}={value}" for name, value in _fields(record))
        line = escaped(f"{record.name}: {_message(record, self._plain)}{fields}")
        lines = [f"{clock} {shown} {line}"]
        if record.exc_info:
            lines.append(escaped(_exception(record, self._plain), but="\n"))
        return "\n".join(lines)


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    for name in FIELDS:
        value = getattr(record, name, None)
        if value is not None and value != "":
            yield name, round(value, 6) if isinstance(value, float) else KNOWN_SECRETS.masked(str(value), MASK)


def _message(record: logging.LogRecord, plain: Collection[str]) -> str:
    try:
        text = record.getMessage()
    except (TypeError, ValueError):
        # A library's message and arguments do not match; the line is still worth writing.
        text = str(record.msg)
    return _safe(text[:MAX_MESSAGE], plain) + ("…" if len(text) > MAX_MESSAGE else "")


def _exception(record: logging.LogRecord, plain: Collection[str]) -> str:
    return _safe("".join(traceback.format_exception(*record.exc_info)).rstrip(), plain) if record.exc_info else ""


def _safe(text: str, plain: Collection[str]) -> str:
    """Mask secrets as a last line of defence: however a message was built, no credential may leave the process."""
    return without_secrets(text, plain)
