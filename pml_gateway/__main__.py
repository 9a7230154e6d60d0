"""The `pml` command, also as `python -m pml_gateway`: a bridge to the gateway of this machine, or the command line."""

from __future__ import annotations

import sys

from pml_gateway.local.entry import bridge


def main() -> None:
    """Run what the words of the command line ask for."""
    sys.argv[1:] = bridge(sys.argv[1:])
    # Half a second of imports, which a bridge does without.
    from pml_gateway.cli.app import main as command_line

    command_line()


if __name__ == "__main__":
    main()
