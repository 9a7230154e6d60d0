"""Files in folders that others write to: nothing is waited for, and nothing of another user's is read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pml_gateway.regular_files import RefusedFileError, git_root, project_files, read_regular

pytestmark = pytest.mark.field("A4")


def test_a_regular_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to(file)
    assert read_regular(file, 100, is_own=True, within=tmp_path) == b"0123456789"
    assert read_regular(tmp_path / "link", 4, within=tmp_path) == b"0123"
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "gone", 1)


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "folder", "socket", "device"])
def test_anything_else_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file"
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "link to a pipe":
            os.mkfifo(tmp_path / "pipe")
            file.symlink_to(tmp_path / "pipe")
        case "folder":
            file.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(file))
        case _:
            file.symlink_to("/dev/zero")
    with pytest.raises(RefusedFileError, match="not a regular file"):
        read_regular(file, 100)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_refused_where_it_has_to_be_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    os.chown(file, 12345, 12345)
    assert read_regular(file, 1) == b"x"
    with pytest.raises(RefusedFileError, match="another user"):
        read_regular(file, 1, is_own=True)


@pytest.mark.parametrize("through", ["file", "folder"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, through: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"secret")
    project = tmp_path / "project"
    project.mkdir()
    if through == "file":
        (project / "file").symlink_to(tmp_path / "outside" / "file")
        file = project / "file"
    else:
        (project / "sub").symlink_to(tmp_path / "outside")
        file = project / "sub" / "file"
    with pytest.raises(RefusedFileError, match="a link to a file outside the project"):
        read_regular(file, 100, within=project)


def test_the_project_ends_at_the_git_root(tmp_path: Path) -> None:
    deep = tmp_path / "root" / "a" / "b"
    deep.mkdir(parents=True)
    assert git_root(deep) is None
    assert [*project_files(deep)] == [f"{deep}/.pml.yaml"]
    (tmp_path / "root" / ".git").touch()
    assert git_root(deep) == str(tmp_path / "root")
    assert [*project_files(deep)] == [
        f"{deep}/.pml.yaml",
        f"{deep.parent}/.pml.yaml",
        f"{tmp_path}/root/.pml.yaml",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_repository_of_another_user_above_makes_no_project(tmp_path: Path, kind: str) -> None:
    deep, git = tmp_path / "shared" / "mine", tmp_path / "shared" / ".git"
    deep.mkdir(parents=True)
    match kind:
        case "folder":
            git.mkdir()
        case "file":
            git.touch()
        case _:
            (tmp_path / "own.git").mkdir()
            git.symlink_to(tmp_path / "own.git")
    os.chown(git, 12345, 12345, follow_symlinks=False)
    assert [*project_files(deep)] == [f"{deep}/.pml.yaml"]
