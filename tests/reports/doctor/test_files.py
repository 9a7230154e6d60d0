"""Doctor on folders that others can look into."""

from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.config.findings import Severity
from pml_gateway.config.settings import Settings
from pml_gateway.reports.doctor.files import files
from tests.support.cases import machine_case


@pytest.mark.field("A8")
@pytest.mark.parametrize(("mode", "is_open"), [(0o755, True), (0o750, True), (0o701, True), (0o700, False)])
def test_a_folder_of_results_that_others_can_enter_is_named(tmp_path: Path, mode: int, is_open: bool) -> None:
    tmp_path.chmod(0o755)
    home, folder = tmp_path / "home", tmp_path / "shared" / "results"
    for each in (home, folder):
        each.mkdir(parents=True)
    folder.parent.chmod(0o755)
    folder.chmod(mode)
    home.chmod(0o700)
    settings = Settings.model_validate({"storage": {"results": f"disk:{folder}"}})
    found = [each for each in files(machine_case(home, settings=settings)) if str(folder) in str(each)]
    assert [each.severity for each in found] == [Severity.WARNING] * is_open
    for finding in found:
        assert finding.repair is not None
        finding.repair()
        assert folder.stat().st_mode & 0o777 == 0o700
