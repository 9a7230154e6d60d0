"""Commands that ask the running gateway, each mounted by itself: all the others take half a second to import."""

from __future__ import annotations

from importlib import import_module

from pml_gateway.cli.program import program, run

MODULES = {"call": "call", "search": "inspect", "schema": "inspect", "tools": "tools", "tokens": "tokens"}
"""The module of each."""


def main(name: str) -> None:
    """Run the command line with this command alone."""
    app, module = program(), import_module(f"pml_gateway.cli.{MODULES[name]}")
    app.command(**getattr(module, "CALL", {}))(getattr(module, name))
    run(app)
