"""The reference of the configuration is complete and true, since the models make it."""

from __future__ import annotations

import json

import pytest

from pml_gateway.config.layers import dotted
from pml_gateway.config.problems import annotation_at
from pml_gateway.config.settings import Settings
from pml_gateway.reports.settings import ENTRY, ITEM, Setting, markdown_reference, reference
from tests.support.command_line import pml

REFERENCE = reference()


@pytest.mark.parametrize("setting", REFERENCE, ids=lambda setting: setting.key)
def test_every_setting_exists_and_says_what_it_is(setting: Setting) -> None:
    assert setting.description
    path = setting.key.replace(ENTRY, "x").split(".")
    assert annotation_at(tuple(0 if part == ITEM else part for part in path)) is not None


def test_the_defaults_are_those_in_force() -> None:
    tree = Settings().model_dump(mode="json")
    for setting in REFERENCE:
        if ENTRY not in setting.key and ITEM not in setting.key:
            value = tree
            for part in setting.key.split("."):
                value = value[part]
            assert setting.default == value, setting.key


def test_every_setting_in_force_has_an_entry() -> None:
    known = {setting.key for setting in REFERENCE}

    def leaves(tree: dict[str, object], at: tuple[str, ...]) -> list[str]:
        found = []
        for name, value in tree.items():
            path = dotted((*at, name))
            if path in known or not isinstance(value, dict):
                found.append(path)
            else:
                found += leaves(value, (*at, name))
        return found

    assert set(leaves(Settings().model_dump(mode="json"), ())) <= known
    sections = {setting.key.split(".")[0] for setting in REFERENCE}
    assert sections == set(Settings.model_fields)


def test_a_section_or_a_setting_can_be_asked_for() -> None:
    shown = json.loads(pml("config", "reference", "gateway.hybrid", "--json").stdout)["settings"]
    assert {each["key"].rpartition(".")[0] for each in shown} == {"gateway.hybrid"}
    assert set(shown[0]) == {"key", "takes", "default", "required", "description"}
    assert "5 " in pml("config", "reference", "search.limit").stdout
    assert "did you mean" in pml("config", "reference", "gateway.hybird", code=2).stderr


def test_markdown_shows_every_setting_on_a_line_of_its_own() -> None:
    lines = markdown_reference(REFERENCE).splitlines()
    assert len(lines) == len(REFERENCE) + 2
    assert pml("config", "reference", "--markdown").stdout.splitlines() == lines
    assert all(line.count("|") == 5 for line in lines)
