"""Starting a gateway that is nobody's child."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from pml_gateway.local.endpoint import Endpoint
from pml_gateway.local.starting import reach
from tests.local import fake_gateway


@pytest.mark.slow
def test_a_limit_of_open_files_without_end_holds_no_start_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.yaml"
    endpoint = Endpoint.of(tmp_path, config)
    command = [sys.executable, fake_gateway.__file__, str(tmp_path), str(config), ""]
    # Where one system call does not close them all, as many would be closed one by one.
    monkeypatch.setattr(os, "sysconf", lambda _: 2**63 - 1)
    reading, inherited = os.pipe()
    os.set_inheritable(inherited, True)
    environ = {**os.environ, "PYTHONPATH": str(Path(fake_gateway.__file__).parents[2])}
    try:
        with reach(endpoint, command, time.monotonic() + 20, environ):
            os.close(inherited)
            assert os.read(reading, 1) == b"", "the gateway has no file of its client's"
    finally:
        os.close(reading)
        for line in (tmp_path / "starts").read_text().splitlines():
            os.kill(json.loads(line)["pid"], signal.SIGKILL)
