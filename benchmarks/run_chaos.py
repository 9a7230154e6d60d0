"""Does the gateway keep its promises while upstreams are killed, hang, start slowly and talk nonsense?

python -m benchmarks.run_chaos [--calls 5000] [--upstreams 20] [--clients 8] [--seed 1] [--json]

Exit code 1 when something does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

import anyio

from benchmarks.chaos.run import Plan, Report, chaos
from benchmarks.harness import table
from benchmarks.processes import new_path
from benchmarks.results import save


async def run(arguments: argparse.Namespace) -> bool:
    """Run, print, save; whether everything holds."""
    plan = Plan(
        calls=arguments.calls,
        upstreams=arguments.upstreams,
        clients=arguments.clients,
        seed=arguments.seed,
        every=arguments.every,
        cap_seconds=arguments.cap_seconds,
    )
    report = await chaos(plan, arguments.log)
    measured = {
        "holds": report.holds,
        "checks": [asdict(check) for check in report.checks],
        "figures": report.figures,
        "outcomes": report.outcomes,
        "counts": report.counts,
    }
    if arguments.json:
        print(json.dumps(measured, indent=2))
    else:
        show(report)
    if not arguments.no_save:
        print(save("chaos", asdict(plan), measured), file=sys.stderr)
    return report.holds


def show(report: Report) -> None:
    """The tables."""
    print(table(report.outcomes), table(report.figures), sep="\n\n", end="\n\n")
    for name, value in report.counts.items():
        print(f"{name}: {value}")
    print()
    for check in report.checks:
        print(f"{'holds ' if check.holds else 'BROKEN'}  {check.what}: {check.found}")


def main() -> None:
    """Parse and run."""
    plan = Plan()
    parser = argparse.ArgumentParser(description="Does the gateway keep its promises while upstreams fail?")
    parser.add_argument("--calls", type=int, default=plan.calls)
    parser.add_argument("--upstreams", type=int, default=plan.upstreams)
    parser.add_argument("--clients", type=int, default=plan.clients)
    parser.add_argument("--seed", type=int, default=plan.seed, help="the same seed, the same calls and faults")
    parser.add_argument("--every", type=int, default=plan.every, help="calls between two faults of processes")
    parser.add_argument("--cap-seconds", type=float, default=plan.cap_seconds, help="wall-clock limit")
    parser.add_argument("--log", type=new_path, help="keep what the gateway writes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-save", action="store_true", help="print only")
    sys.exit(0 if anyio.run(run, parser.parse_args()) else 1)


if __name__ == "__main__":
    main()
