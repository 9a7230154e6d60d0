"""What a person types to add a package to the environment that runs the gateway."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from pml_gateway.installation import EXTRAS, adding
from tests.support.documents import REPOSITORY


def test_pip_of_this_very_environment_adds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/opt/my venv/bin/python")
    monkeypatch.setitem(sys.modules, "pip", sys)
    assert adding("redis", "x>=5") == "'/opt/my venv/bin/python' -m pip install redis 'x>=5'"


def test_pipx_adds_to_the_environment_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = tmp_path / "venvs" / "pml-gateway"
    prefix.mkdir(parents=True)
    (prefix / "pipx_metadata.json").write_text("{}")
    monkeypatch.setattr(sys, "prefix", str(prefix))
    assert adding("redis") == "pipx inject pml-gateway redis"


def test_uv_adds_to_an_environment_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/opt/tool/bin/python")
    monkeypatch.setitem(sys.modules, "pip", None)
    assert adding("redis") == "uv pip install --python /opt/tool/bin/python redis"


def project() -> dict[str, list[str]]:
    """What the package needs, and its extras."""
    read = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"": read["dependencies"], **read["optional-dependencies"]}


def test_the_extras_are_what_messages_name() -> None:
    needed = project()
    assert {extra: tuple(needed[extra]) for extra in EXTRAS} == EXTRAS
    assert "pml-gateway[sentence-transformers]" in needed["dev"]


def test_nothing_that_is_always_installed_needs_torch() -> None:
    names = [requirement.split(";")[0] for requirement in project()[""]]
    assert not [name for name in names if "torch" in name or "transformers" in name]
