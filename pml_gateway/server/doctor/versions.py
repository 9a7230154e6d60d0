"""What is installed becomes findings: the versions of Python and of the packages, against those that are needed."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement

from pml_gateway import __version__
from pml_gateway.server.doctor.finding import Area, Finding, Severity

DISTRIBUTION = "pml-gateway"


def versions(distribution: str = DISTRIBUTION) -> Iterator[Finding]:
    """This version, Python's, and packages that are missing or of the wrong version."""
    what = f"pml-gateway {__version__}, Python {platform.python_version()}, {platform.system()}"
    try:
        required = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        yield Finding(Area.VERSIONS, Severity.OK, "", f"{what}; run from a checkout")
        return
    problems = [problem for text in required for problem in _problems(Requirement(text))]
    yield from problems
    if not problems:
        yield Finding(Area.VERSIONS, Severity.OK, "", f"{what}, and every package it needs")


def _problems(requirement: Requirement) -> Iterator[Finding]:
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return
    fix = f"pip install '{requirement.name}{requirement.specifier}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        yield Finding(Area.VERSIONS, Severity.ERROR, requirement.name, "is not installed", fix)
        return
    if not requirement.specifier.contains(version, prereleases=True):
        what = f"is version {version}, and {requirement.specifier} is needed"
        yield Finding(Area.VERSIONS, Severity.ERROR, requirement.name, what, fix)
