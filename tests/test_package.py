"""What the package promises to those who import it, and to those who test it from its source distribution."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

import pml_gateway

REPOSITORY = Path(__file__).parents[1]
OWN = ("pml_gateway", "tests", "benchmarks")


def test_the_version_is_the_one_of_the_distribution() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", pml_gateway.__version__)
    assert importlib.metadata.version("pml-gateway") == pml_gateway.__version__


def test_the_package_says_that_it_is_typed() -> None:
    assert files(pml_gateway).joinpath("py.typed").is_file()


def test_what_it_exports_is_sorted_and_exists() -> None:
    exported = getattr(pml_gateway, "__all__", ["__version__"])
    assert list(exported) == sorted(exported)
    assert all(hasattr(pml_gateway, name) for name in exported)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution of this checkout."""
    pytest.importorskip("hatchling", reason="builds the source distribution")
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=100, check=True)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        # `extractall(filter="data")` is an error before Python 3.11.4; the attribute is not.
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(folder)
    return folder / archive.name.removesuffix(".tar.gz")


def imported(file: Path, package: str) -> Iterator[tuple[str, str]]:
    """Yield each module that a file of this package imports, and each name that it takes out of one."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            above = ".".join(package.split(".")[: 1 - node.level or None]) if node.level else ""
            module = ".".join(filter(None, (above, node.module)))
            yield from ((module, each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names)


def resolves(root: Path, module: str, name: str) -> bool:
    """Return True if the module lies below this folder, with the name if it may be a module itself."""
    place = root.joinpath(*module.split("."))
    if place.with_suffix(".py").is_file():
        return True
    opened = place / "__init__.py"
    if not opened.is_file():
        return False
    text = opened.read_text(encoding="utf-8")
    return bool(re.search(rf"\b{name}\b", text)) or resolves(root, f"{module}.{name}", "")


@pytest.mark.slow
def test_whatever_its_tests_import_of_the_project_is_in_the_source_distribution(sdist: Path) -> None:
    found = {
        (str(file.relative_to(sdist)), *each): resolves(sdist, *each)
        for part in ("tests", "benchmarks")
        for file in sdist.glob(f"{part}/**/*.py")
        for each in imported(file, ".".join(file.relative_to(sdist).parent.parts))
        if each[0].partition(".")[0] in OWN
    }
    assert [each for each, is_there in found.items() if not is_there] == []
    assert len(found) > 1000


def test_the_source_distribution_has_every_file_of_the_repository(sdist: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode or not listed.stdout:
        pytest.skip("this is no checkout")
    kept = [name for name in listed.stdout.split("\0") if name and (REPOSITORY / name).exists()]
    assert [name for name in kept if not (sdist / name).exists()] == []
