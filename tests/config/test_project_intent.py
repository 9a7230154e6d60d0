"""What a project says of itself becomes an intent."""

from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.config.project import MAX_CHARACTERS, derive_intent

PROSE = "Books trains and sends the tickets by mail."


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pyproject.toml", f'[project]\ndescription = "{PROSE}"\n'),
        ("pyproject.toml", f'[tool.poetry]\ndescription = "{PROSE}"\n'),
        ("package.json", f'{{"description": "{PROSE}"}}'),
        ("Cargo.toml", f'[package]\ndescription = "{PROSE}"\n'),
        (
            "README.md",
            f"<p align=center>\n</p>\n\n# Trains\n\n[![ci](a)](b)\n\n> quoted text of others\n\n{PROSE}\n\nMore.\n",
        ),
        (
            "README.md",
            "# Trains\n\n```sh\npip install trains-and-more\n```\n\nBooks *trains* and sends the\n`tickets` by mail.\n",
        ),
        ("README.rst", f"Trains\n======\n\n.. image:: x\n\n{PROSE}\n"),
    ],
)
def test_its_description_is_found(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    found = derive_intent(tmp_path)
    assert found is not None
    assert (found.text, found.file) == (PROSE, tmp_path / name)


def test_a_package_file_comes_before_the_readme_unless_it_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"# x\n\n{PROSE}\n")
    (tmp_path / "package.json").write_text('{"description": "tbd"}')
    (tmp_path / "Cargo.toml").write_text("[package\n")
    found = derive_intent(tmp_path)
    assert found is not None
    assert found.file.name == "README.md"


def test_a_long_text_becomes_whole_sentences_without_control_characters(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"{PROSE}\x1b[31m " + "It does many other things as well. " * 40)
    found = derive_intent(tmp_path)
    assert found is not None
    assert len(found.text) <= MAX_CHARACTERS
    assert found.text.endswith("as well.")
    assert "\x1b" not in found.text


def test_a_folder_that_says_nothing_has_none(tmp_path: Path) -> None:
    (tmp_path / "README.md").mkdir()
    (tmp_path / "package.json").write_text("[1]")
    assert derive_intent(tmp_path) is None
