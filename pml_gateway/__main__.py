"""The `pml` command, also as `python -m pml_gateway`: a bridge to the gateway of this machine, or the command line."""

from __future__ import annotations

import os
import sys

from pml_gateway.local.entry import bridge


def main() -> None:
    """Run what the words of the command line ask for."""
    _open_missing_streams()
    sys.argv[1:] = bridge(sys.argv[1:])
    # A tenth of a second of imports, which a bridge does without.
    from pml_gateway.cli.app import main as command_line

    command_line()


def _open_missing_streams() -> None:
    """Have the null device in the place of a stream that was closed, or the next file to be opened would take it."""
    opened = os.open(os.devnull, os.O_RDWR)
    while opened <= 2:  # stderr
        opened = os.open(os.devnull, os.O_RDWR)
    os.close(opened)


if __name__ == "__main__":
    main()
