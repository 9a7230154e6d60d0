"""Do replicas on Redis answer as one gateway does, also while replicas and Redis fail, and what does it cost?

    python -m benchmarks.run_cluster [--rows mixed faults redis cost] [--calls 5000] [--quick]

A real Redis server, three gateway processes and haproxy in front of them run on this machine, with servers that write
down every execution. Exit code 1 when something does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

import anyio

from benchmarks.cluster.cost import cost
from benchmarks.cluster.rows import QUICK, Plan, RowReport, faults, mixed, redis_faults
from benchmarks.harness import table
from benchmarks.processes import new_path
from benchmarks.results import save

ROWS: Mapping[str, Callable[[Plan, Path], Awaitable[RowReport]]] = MappingProxyType(
    {"mixed": mixed, "faults": faults, "redis": redis_faults, "cost": cost}
)


async def run(arguments: argparse.Namespace) -> bool:
    """Run the rows, print and save them; return True if everything holds."""
    plan = QUICK if arguments.quick else Plan()
    plan = replace(plan, seed=arguments.seed, replicas=arguments.replicas, clients=arguments.clients)
    if arguments.calls is not None:
        plan = replace(plan, calls=arguments.calls)
    reports = {}
    for name in arguments.rows:
        with _folder(arguments.folder) as folder:
            reports[name] = await ROWS[name](plan, folder)
        if arguments.folder is not None:
            _write_failures(folder / f"{name}.json", reports[name])
        print(table([finding.shown() for finding in reports[name].findings]), end="\n\n", flush=True)
    findings = [finding for report in reports.values() for finding in report.findings]
    if not arguments.no_save and not arguments.quick:
        measured = {
            "findings": [asdict(finding) for finding in findings],
            "figures": {name: report.figures for name, report in reports.items()},
        }
        print(save("cluster", asdict(plan), measured), file=sys.stderr)
    return all(finding.holds for finding in findings)


def _write_failures(path: Path, report: RowReport) -> None:
    """Write what failed, whole."""
    failures = {
        "turns": [asdict(turn) for turn in report.failed_turns],
        "exchanges": [asdict(each) for each in report.failed_exchanges],
        "figures": report.figures,
        "findings": [asdict(finding) for finding in report.findings],
    }
    path.write_text(json.dumps(failures, indent=1, ensure_ascii=False), encoding="utf-8")


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="cluster-") as temporary:
        yield Path(temporary)


def main() -> None:
    """Parse and run."""
    plan = Plan()
    parser = argparse.ArgumentParser(description="Do replicas on Redis answer as one gateway does?")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--calls", type=int, help="calls of a load")
    parser.add_argument("--clients", type=int, default=plan.clients)
    parser.add_argument("--replicas", type=int, default=plan.replicas)
    parser.add_argument("--seed", type=int, default=plan.seed, help="the same seed, the same calls")
    parser.add_argument("--quick", action="store_true", help="few calls and short faults: shows that it runs")
    parser.add_argument("--folder", type=new_path, help="keep configurations and logs in this new folder")
    parser.add_argument("--no-save", action="store_true", help="print only")
    sys.exit(0 if anyio.run(run, parser.parse_args()) else 1)


if __name__ == "__main__":
    main()
