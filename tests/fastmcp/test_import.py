"""Importing `pml_gateway.fastmcp`: what it loads, and what it says where FastMCP is missing or too old."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

NOT_LOADED = ("cli", "serve", "reports", "upstreams", "trust", "clients", "gateway.gateway", "processes.stdio", "demo")
"""Processes, connections and commands: a server in process has none."""

HEAVY = ("onnxruntime", "faiss", "torch", "sentence_transformers", "tokenizers", "typer")


@pytest.mark.slow
def test_the_import_loads_no_machinery_of_the_gateway() -> None:
    script = "import sys, pml_gateway.fastmcp; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    modules = loaded.stdout.split()
    ours = [each.removeprefix("pml_gateway.") for each in modules if each.startswith("pml_gateway.")]
    assert not [each for each in ours if each in NOT_LOADED or each.startswith(tuple(f"{no}." for no in NOT_LOADED))]
    assert not set(HEAVY) & set(modules)


@pytest.mark.parametrize("installed", [None, "3.4.1"])
def test_without_the_fastmcp_it_needs_it_says_what_to_install(
    installed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.delitem(sys.modules, "pml_gateway.fastmcp", raising=False)
    with pytest.raises(ImportError, match=r'pip install "fastmcp>=4,<5"') as refused:
        importlib.import_module("pml_gateway.fastmcp")
    assert (installed or "not installed") in str(refused.value)
