"""Log lines: what they say, in which form, and what they never say."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pml_gateway.config.masked import literal_credentials
from pml_gateway.config.settings import LogSettings, Settings
from pml_gateway.secrets.known import KnownSecrets
from pml_gateway.secrets.references import resolve
from pml_gateway.telemetry.logs import configure
from pml_gateway.telemetry.trace import CURRENT_TRACE, Trace
from pml_gateway.text import escaped


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def in_a_request() -> Iterator[None]:
    parent = (("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),)
    token = CURRENT_TRACE.set(Trace("abc-1", client="ci-bot", parent=parent))
    yield
    CURRENT_TRACE.reset(token)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def as_json(stream: io.StringIO, level: str = "info") -> logging.Logger:
    configure(LogSettings.model_validate({"level": level, "format": "json"}), stream)
    return logging.getLogger("pml_gateway.test")


@pytest.mark.usefixtures("in_a_request")
def test_a_json_line_names_its_request_and_what_is_known_of_the_call(stream: io.StringIO) -> None:
    as_json(stream).warning("%s ended", "tools/call", extra={"upstream": "up", "tool": "t", "seconds": 0.12345678})
    [line] = lines(stream)
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "pml_gateway.test",
        "message": "tools/call ended",
        "request_id": "abc-1",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "client": "ci-bot",
        "upstream": "up",
        "tool": "t",
        "seconds": 0.123457,
    }


@pytest.mark.usefixtures("in_a_request")
def test_a_record_of_a_library_names_the_request_as_well(stream: io.StringIO) -> None:
    as_json(stream)
    logging.getLogger("some.library").warning("careful")
    assert [line["request_id"] for line in lines(stream)] == ["abc-1"]


def test_the_sdk_and_http_libraries_say_nothing_of_what_passes_through(stream: io.StringIO) -> None:
    as_json(stream, "debug")
    for name in ("mcp.client.session", "httpx2", "uvicorn.access", "aiohttp.client", "asyncio"):
        logging.getLogger(name).info("arguments and results")
    assert stream.getvalue() == ""


def test_text_stays_on_one_line_whatever_a_server_wrote(stream: io.StringIO) -> None:
    configure(LogSettings(format="text"), stream)
    logging.getLogger("pml_gateway.test").error("first\nsecond\x1b[31m \udcff")
    [line] = stream.getvalue().splitlines()
    assert "first\\nsecond\\x1b[31m" in line
    assert line.split()[1] == "ERROR"


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_hidden_is_in_a_line_or_a_traceback(stream: io.StringIO, form: str) -> None:
    hidden = "\x9b31m\u202e\u200b\U000e0041\x1b[2J"
    configure(LogSettings.model_validate({"format": form}), stream)
    try:
        raise ValueError(hidden)
    except ValueError:
        logging.getLogger("pml_gateway.test").exception("%s", hidden, extra={"tool": hidden})
    text = stream.getvalue()
    assert text.isascii()
    assert escaped(text, but="\n") == text
    if form == "json":
        line = json.loads(text)
        assert line["message"] == line["tool"] == hidden
        assert hidden in line["exception"]


def test_colour_is_for_terminals_alone(stream: io.StringIO) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    for target in (stream, terminal):
        configure(LogSettings(), target)
        logging.getLogger("pml_gateway.test").error("broken")
    assert "\x1b[" in terminal.getvalue()
    assert "\x1b[" not in stream.getvalue()


def test_a_resolved_secret_is_masked_wherever_it_stands(stream: io.StringIO) -> None:
    logger = as_json(stream)
    secret = "correct horse/battery"
    assert resolve("Bearer ${env:LOG_TEST_KEY}", {"LOG_TEST_KEY": secret}).endswith(secret)
    logger.warning("the server said %r", f"no: {secret}")
    logger.warning("at https://h/?k=correct%20horse%2Fbattery&x=1", extra={"tool": secret})
    try:
        raise ValueError(f"bad key {secret}")
    except ValueError:
        logger.exception("failed")
    assert "horse" not in stream.getvalue()
    assert len(lines(stream)) == 3
    assert lines(stream)[2]["exception"].startswith("Traceback")


def test_literal_credentials_of_the_configuration_are_known() -> None:
    settings = Settings.model_validate(
        {
            "servers": {
                "a": {
                    "url": "https://user:pass-word@h.example/mcp?k=query-value",
                    "headers": {"X-Team": "header-value"},
                },
                "b": {
                    "command": "c",
                    "args": ["--token", "arg-value"],
                    "env": {"API_KEY": "env-value", "MODE": "plain"},
                },
            }
        }
    )
    known = KnownSecrets()
    known.remember_all(literal_credentials(settings))
    shown = known.masked("pass-word query-value header-value arg-value env-value plain h.example", "*")
    assert shown == "* * * * * plain h.example"


def test_what_looks_like_a_credential_is_masked_though_nobody_named_it(stream: io.StringIO) -> None:
    as_json(stream).info("using token=s3cr3t-abc and ghp_abcdefghij0123456789 at http://u:p4ss@h/")
    message = lines(stream)[0]["message"]
    assert not [word for word in ("s3cr3t-abc", "abcdefghij", "p4ss") if word in message]


def test_the_oldest_values_go_first_and_paths_are_no_secrets() -> None:
    known = KnownSecrets()
    known.remember("/tmp")
    known.remember("short")
    known.remember_all(f"value-{number:05}" for number in range(2001))
    assert known.masked("/tmp short value-00000 value-02000", "*") == "/tmp short value-00000 *"


@pytest.mark.parametrize(("given", "level"), [("WARNING", "warning"), ("Debug", "debug")])
def test_a_level_is_read_in_any_case(given: str, level: str) -> None:
    assert LogSettings.model_validate({"level": given}).level == level
