"""Folders of skills: what is served of them, and what is not, with the remedy."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pml_gateway.skills import folders
from pml_gateway.skills.folders import SkillReader


def write_skill(root: Path, path: str, *, name: str = "", description: str = "How it is done.", body: str = "") -> Path:
    """One skill, and its folder."""
    folder = root / path
    folder.mkdir(parents=True)
    text = f"---\nname: {name or folder.name}\ndescription: {json.dumps(description)}\n---\n{body}"
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    return folder


def test_a_skill_is_served_with_every_file_and_its_digest(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "refunds")
    (folder / "references").mkdir()
    (folder / "references" / "a b.md").write_bytes(b"more")
    (folder / ".hidden").write_bytes(b"x")
    write_skill(tmp_path, "ops/deploy")
    found = SkillReader([tmp_path]).read()
    assert found.faults == ()
    assert [skill.uri for skill in found.skills] == ["skill://ops/deploy/SKILL.md", "skill://refunds/SKILL.md"]
    entry = found.skills[1].entry
    assert entry["frontmatter"] == {"name": "refunds", "description": "How it is done."}
    main, more = entry["resources"]
    assert main["uri"] == "skill://refunds/SKILL.md"
    digest = f"sha256:{hashlib.sha256(b'more').hexdigest()}"
    assert more == {"uri": "skill://refunds/references/a%20b.md", "digest": digest, "size": 4}


def test_a_folder_that_is_itself_a_skill_is_served_by_its_name(tmp_path: Path) -> None:
    found = SkillReader([write_skill(tmp_path, "refunds")]).read()
    assert [skill.uri for skill in found.skills] == ["skill://refunds/SKILL.md"]


def test_what_is_inside_a_skill_belongs_to_it(tmp_path: Path) -> None:
    write_skill(write_skill(tmp_path, "outer"), "inner")
    [skill] = SkillReader([tmp_path]).read().skills
    assert [*skill.files] == ["skill://outer/SKILL.md", "skill://outer/inner/SKILL.md"]


def link_out(root: Path) -> None:
    outside = root.parent / "outside"
    write_skill(outside, "elsewhere")
    (root / "elsewhere").symlink_to(outside / "elsewhere")


def file_out(root: Path) -> None:
    secret = root.parent / "secret"
    secret.write_text("secret", encoding="utf-8")
    (write_skill(root, "fine") / "notes").symlink_to(secret)


def main_out(root: Path) -> None:
    secret = root.parent / "secret"
    secret.write_text("---\nname: fine\ndescription: x\n---\n", encoding="utf-8")
    (root / "fine").mkdir()
    (root / "fine" / "SKILL.md").symlink_to(secret)


def pipe(root: Path) -> None:
    os.mkfifo(write_skill(root, "fine") / "pipe")


def many_files(root: Path) -> None:
    folder = write_skill(root, "many")
    for number in range(folders.MAX_FILES):
        (folder / str(number)).touch()


def large(root: Path) -> None:
    with (write_skill(root, "large") / "data").open("wb") as file:
        file.truncate(folders.MAX_BYTES + 1)


def large_main(root: Path) -> None:
    write_skill(root, "large", body="x" * (folders.MAX_MAIN_BYTES + 1))


def no_front_matter(root: Path) -> None:
    (root / "bare").mkdir()
    (root / "bare" / "SKILL.md").write_text("# Do it", encoding="utf-8")


def colon(root: Path) -> None:
    (root / "colon").mkdir()
    (root / "colon" / "SKILL.md").write_text("---\nname: colon\ndescription: Use when: always\n---\n", encoding="utf-8")


def no_text(root: Path) -> None:
    (root / "bytes").mkdir()
    (root / "bytes" / "SKILL.md").write_bytes(b"---\nname: \xff\n---\n")


def bad_name_of_file(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(write_skill(root, "fine")) + b"/\xff")).touch()


def deep(root: Path) -> None:
    write_skill(root, "deep").joinpath(*["d"] * (folders.MAX_DEPTH + 2)).mkdir(parents=True)


@pytest.mark.parametrize(
    ("make", "said", "served"),
    [
        (link_out, "outside of", []),
        (file_out, "outside of", ["fine"]),
        (main_out, "a link to a file outside", []),
        (pipe, "is no regular file", ["fine"]),
        (many_files, "more than 512 files", []),
        (large, "larger than 16 MiB", []),
        (large_main, "larger than 1024 KiB", []),
        (no_front_matter, "name: bare", []),
        (no_text, "name: bytes", []),
        (colon, "write a value with a colon in quotes", []),
        (bad_name_of_file, "cannot be read", []),
        (deep, "deeper than 12 folders", []),
        (lambda root: write_skill(root, "Upper"), "lowercase", []),
        (lambda root: write_skill(root, "one", name="two"), "is named 'two', and its folder 'one'", []),
        (lambda root: write_skill(root, "mute", description=""), "description", []),
        (lambda root: write_skill(root, "long", description="x" * 1025), "1-1024 characters", []),
    ],
)
def test_what_is_not_served_is_said_with_a_remedy(
    tmp_path: Path, make: Callable[[Path], object], said: str, served: list[str]
) -> None:
    root = tmp_path / "skills"
    write_skill(root, "other")
    make(root)
    found = SkillReader([root]).read()
    [fault] = found.faults
    assert said in str(fault)
    assert fault.fix
    assert {skill.path for skill in found.skills} == {"other", *served}
    assert not any("secret" in str(file) for skill in found.skills for file in skill.files.values())


def test_the_first_of_two_skills_with_one_path_is_served(tmp_path: Path) -> None:
    for root in ("one", "two"):
        write_skill(tmp_path / root, "refunds")
    found = SkillReader([tmp_path / "one", tmp_path / "two", tmp_path / "none"]).read()
    assert [skill.folder.parent.name for skill in found.skills] == ["one"]
    assert ["is named as" in str(fault) for fault in found.faults] == [True, False]
    assert str(found.faults[1]) == f"{tmp_path / 'none'}: is no folder; create it, or correct `skills`"


def test_a_folder_that_holds_far_too_much_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        write_skill(tmp_path, f"s{number}")
    monkeypatch.setattr(folders, "MAX_SKILLS", 3)
    found = SkillReader([tmp_path]).read()
    assert (len(found.skills), "beyond 3 in all" in str(found.faults[0])) == (3, True)
    monkeypatch.setattr(folders, "MAX_ENTRIES", 5)
    assert "name the folder of the skills themselves" in str(SkillReader([tmp_path]).read().faults[0])


def test_links_in_circles_end(tmp_path: Path) -> None:
    write_skill(tmp_path, "a/fine")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    found = SkillReader([tmp_path]).read()
    assert "a/fine" in {skill.path for skill in found.skills}
