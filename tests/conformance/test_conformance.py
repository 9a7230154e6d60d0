"""The official conformance suite, against the server itself and through the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.conftest import Stand
from tests.conformance.suite import EXPECTED_CHECKS, run_suite
from tests.e2e.install import Installation

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("version", EXPECTED_CHECKS)
def test_the_server_passes_every_check_without_the_gateway(
    stand: Stand, installation: Installation, version: str, tmp_path: Path
) -> None:
    outcome = run_suite(installation, stand("direct"), version, tmp_path / "results")
    assert not outcome.complaints, "\n".join(outcome.complaints)
    assert outcome.passed == EXPECTED_CHECKS[version]
