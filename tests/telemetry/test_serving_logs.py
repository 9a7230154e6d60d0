"""The log of a real gateway process: JSON lines, changed while it runs, and free of secrets whatever fails."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import GatewayProcess, run_pml, running_gateway, write_settings
from tests.support.raw import result_modern

UPSTREAM_SERVER = str(Path(__file__).parents[1] / "support" / "scripted_server.py")
SECRETS = {
    "URL_SECRET": "url secret/with+signs",
    "HEADER_SECRET": "header-secret-value",
    "ENV_SECRET": "env-secret-value",
    "ARG_SECRET": "argument-secret-value",
}
LITERALS = ("literal-in-url", "literal-in-header", "literal-in-env")
LIMIT = 60


def wait_for(gateway: GatewayProcess, text: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not any(text in line for line in list(gateway.log)):
        assert time.monotonic() < deadline, "".join(gateway.log)
        time.sleep(0.05)


def call_once_listed(gateway: GatewayProcess, name: str, **arguments: str) -> None:
    """Call a tool; a server that has just been started may not have listed it yet."""
    deadline = time.monotonic() + LIMIT
    while result_modern(gateway.url, "tools/call", {"name": name, "arguments": arguments}).get("isError"):
        assert time.monotonic() < deadline, "".join(gateway.log)
        time.sleep(0.05)


def json_lines(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """Every line but what the command itself says for people."""
    return [json.loads(line) for line in gateway.log if not line.startswith(("listening on", "metrics at"))]


def test_no_secret_is_in_any_line_whatever_fails(tmp_path: Path) -> None:
    servers = {
        "refused": {
            "url": "http://user:literal-in-url@127.0.0.1:9/mcp?key=${env:URL_SECRET}",
            "headers": {"Authorization": "Bearer ${env:HEADER_SECRET}", "X-Key": "literal-in-header"},
        },
        "malformed": {"url": "http://[${env:URL_SECRET}/mcp"},
        "missing": {"command": "/no/such/${env:ARG_SECRET}"},
        "crashing": {
            "command": sys.executable,
            "args": ["-c", "import os, sys; sys.exit(os.environ['TOKEN'] + sys.argv[1])", "${env:ARG_SECRET}"],
            "env": {"TOKEN": "${env:ENV_SECRET}", "PASSWORD": "literal-in-env"},
        },
        "noisy": {"command": sys.executable, "args": ["-c", "print('${env:ENV_SECRET}')"]},
        "fine": {"command": sys.executable, "args": [UPSTREAM_SERVER], "env": {"TOKEN": "${env:ENV_SECRET}"}},
    }
    settings = {"servers": servers, "log": {"level": "debug", "format": "json"}}
    with running_gateway(tmp_path, settings, extra=SECRETS) as gateway:
        for name in ("refused", "malformed", "missing", "crashing", "noisy"):
            wait_for(gateway, f"{name}: ")
        call_once_listed(gateway, "fine__echo", message="my diary")
        result_modern(gateway.url, "tools/call", {"name": "refused__x", "arguments": {}})
        result_modern(gateway.url, "tools/call", {"name": "fine__crash", "arguments": {"message": "my diary"}})
        gateway.stop()
    lines = json_lines(gateway)
    assert all({"ts", "level", "logger", "message"} <= line.keys() for line in lines)
    calls = [line for line in lines if line["logger"].endswith("telemetry.observe") and "tool" in line]
    assert [(line["tool"], line["code"], line["level"]) for line in calls] == [
        ("echo", "OK", "debug"),
        ("crash", "UPSTREAM_UNAVAILABLE", "warning"),
    ]
    assert all(line["request_id"] == "test" and line["upstream"] == "fine" for line in calls)
    text = "".join(gateway.log)
    found = [secret for secret in (*SECRETS.values(), *LITERALS, "my diary", "url%20secret") if secret in text]
    assert not found, text


@pytest.mark.slow
def test_the_form_and_level_change_while_it_runs(tmp_path: Path) -> None:
    settings = {"servers": {"up": {"command": sys.executable, "args": [UPSTREAM_SERVER]}}}
    with running_gateway(tmp_path, settings, extra={"PML_HTTP__METRICS": "true"}) as gateway:
        wait_for(gateway, "metrics at http://127.0.0.1:")
        gateway.write_config({**settings, "log": {"format": "json", "level": "debug"}})
        wait_for(gateway, '"message": "settings applied')
        call_once_listed(gateway, "up__echo")
        wait_for(gateway, '"code": "OK"')
        gateway.stop()


@pytest.mark.slow
def test_an_option_wins_over_the_file_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    settings = {"servers": {"up": {"command": "none"}}, "log": {"format": "text"}}
    with running_gateway(tmp_path, settings, "--log-format", "json") as gateway:
        gateway.stop()
    assert json_lines(gateway)[0]["level"] == "info"
    write_settings(tmp_path, settings)
    done = run_pml(tmp_path, "serve", "--log-level", "loud")
    assert done.returncode == 2
    assert "debug, info, warning or error" in done.stderr


def test_keys_for_clients_without_one_for_metrics_end_the_start(tmp_path: Path) -> None:
    settings = {
        "servers": {"up": {"command": "none"}},
        "clients": {"bot": {"key": "${env:BOT_KEY}"}},
        "http": {"metrics": True},
    }
    write_settings(tmp_path, settings)
    done = run_pml(tmp_path, "serve", "--http", "--port", "0", extra={"BOT_KEY": "0123456789abcdefghij"})
    assert done.returncode == 78
    assert "http.metrics_key is not set" in done.stderr
