"""A stdio upstream that works until a file appears and is dead or silent afterwards, under the same configuration.

python -m benchmarks.fickle --switch FILE --fault dead|hang --tools 50 --seed 3
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import anyio

from benchmarks.synthetic import build, serve_stdio, synthetic_tools


def main() -> None:
    """Serve, or fail as told."""
    parser = argparse.ArgumentParser(description="An upstream that fails once a file exists.")
    parser.add_argument("--switch", type=Path, required=True)
    parser.add_argument("--fault", choices=["dead", "hang"], required=True)
    parser.add_argument("--tools", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    if not arguments.switch.exists():
        anyio.run(serve_stdio, build(synthetic_tools(arguments.tools, seed=arguments.seed)))
    elif arguments.fault == "dead":
        sys.exit("this upstream is dead")
    else:
        sys.stdin.read()  # silent until the gateway gives up


if __name__ == "__main__":
    main()
