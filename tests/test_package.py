"""What the package promises to those who import it."""

from __future__ import annotations

import importlib.metadata
import re
from importlib.resources import files

import pml_gateway


def test_the_version_is_the_one_of_the_distribution() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", pml_gateway.__version__)
    assert importlib.metadata.version("pml-gateway") == pml_gateway.__version__


def test_the_package_says_that_it_is_typed() -> None:
    assert files(pml_gateway).joinpath("py.typed").is_file()


def test_what_it_exports_is_sorted_and_exists() -> None:
    exported = getattr(pml_gateway, "__all__", ["__version__"])
    assert list(exported) == sorted(exported)
    assert all(hasattr(pml_gateway, name) for name in exported)
