"""What doctor says of the search: its model."""

from __future__ import annotations

import sys

import pytest

from pml_gateway.config.findings import SettingsCase, Severity
from pml_gateway.config.settings import Settings
from pml_gateway.installation import TRANSFORMERS, adding
from pml_gateway.reports.doctor.search import model


def test_a_model_whose_library_is_missing_is_a_warning_with_the_command_that_adds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    (found,) = model(SettingsCase(Settings.model_validate({"search": {"model": "nobody/model"}}), {}))
    assert (found.severity, found.subject) == (Severity.WARNING, "model nobody/model")
    assert "words alone" in found.what
    assert adding(TRANSFORMERS) in found.fix
