"""The official conformance suite, against the server itself and through the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.conftest import EVERYTHING_FOLDER, Stand
from tests.conformance.suite import EXPECTED_CHECKS, run_suite
from tests.e2e.install import Installation

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("version", EXPECTED_CHECKS)
def test_the_server_passes_every_check_without_the_gateway(
    stand: Stand, installation: Installation, version: str, tmp_path: Path
) -> None:
    outcome = run_suite(installation, stand("direct"), version, tmp_path / "results")
    assert not outcome.complaints, "\n".join(outcome.complaints)
    assert outcome.passed == EXPECTED_CHECKS[version]


_NO_STREAM = "ServerDisconnectResume"
"""A server ends a stream before it answers: only streamable HTTP has streams that can end."""

LEFT_OUT = {
    "http": set(),
    "chained": set(),
    "replicas": set(),
    "stdio": {_NO_STREAM},
    "stdio gateway": {_NO_STREAM},
    "bridge": {_NO_STREAM},
    "sse": {_NO_STREAM},
}
"""What the transport between the gateway and the server does not allow, by the names of the checks."""


@pytest.mark.parametrize(
    ("path", "version"),
    [
        *(
            (path, version)
            for path in ("http", "chained", "replicas", "stdio", "stdio gateway", "bridge")
            for version in EXPECTED_CHECKS
        ),
        # The transport is older than 2026-07-28, whose server tools cannot be called over it.
        ("sse", "2025-11-25"),
    ],
)
def test_the_gateway_passes_what_the_server_passes(
    stand: Stand, installation: Installation, path: str, version: str, tmp_path: Path
) -> None:
    url = stand(path)
    outcome = run_suite(installation, url, version, tmp_path / "results")
    assert not outcome.complaints, "\n".join(outcome.complaints)
    left_out = {check.name for check in outcome.checks if check.status == "INFO"} & LEFT_OUT[path]
    assert outcome.passed == EXPECTED_CHECKS[version] - len(left_out)


@pytest.mark.skipif(not EVERYTHING_FOLDER.is_dir(), reason=f"no {EVERYTHING_FOLDER}: PML_DATA says where it is")
@pytest.mark.parametrize("version", EXPECTED_CHECKS)
def test_the_gateway_passes_what_the_everything_server_of_the_sdk_passes(
    stand: Stand, installation: Installation, version: str, tmp_path: Path
) -> None:
    direct = run_suite(installation, stand("everything"), version, tmp_path / "direct")
    through = run_suite(installation, stand("through to everything"), version, tmp_path / "through")
    missed = set(through.complaints) - set(direct.complaints)
    assert not missed, "\n".join(missed)
    assert through.passed == direct.passed >= EXPECTED_CHECKS[version] - len(direct.complaints)
