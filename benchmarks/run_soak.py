"""Does the gateway's memory stay where it is after many calls of every kind?

python -m benchmarks.run_soak [--calls 50000] [--first-sample 5000] [--json]

Exit code 1 when memory at the end is over a tenth above that at the first sample.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

import anyio

from benchmarks.harness import table
from benchmarks.processes import new_path
from benchmarks.results import save
from benchmarks.soak import Plan, soak


async def run(arguments: argparse.Namespace) -> bool:
    """Run, print, save; whether memory stayed."""
    plan = Plan(
        calls=arguments.calls,
        first_sample=arguments.first_sample,
        clients=arguments.clients,
        seed=arguments.seed,
        cap_seconds=arguments.cap_seconds,
    )
    report = await soak(plan, arguments.log)
    growth = report.growth(plan)
    holds = growth <= plan.growth
    measured = {
        "holds": holds,
        "rss_mib_at_first_sample": report.rss(plan.first_sample),
        "growth": round(growth, 4),
        "seconds": report.seconds,
        "turns": dict(report.kinds),
        "samples": report.samples,
    }
    if arguments.json:
        print(json.dumps(measured, indent=2))
    else:
        print(table(report.samples))
        print(f"\n{report.done:,} calls in {report.seconds} s, turns: {dict(report.kinds)}")
        print(f"{'holds' if holds else 'BROKEN'}: memory {growth:+.1%} since {plan.first_sample:,} calls")
    if not arguments.no_save:
        print(save("soak", asdict(plan), measured), file=sys.stderr)
    return holds


def main() -> None:
    """Parse and run."""
    plan = Plan()
    parser = argparse.ArgumentParser(description="Does memory stay where it is after many calls of every kind?")
    parser.add_argument("--calls", type=int, default=plan.calls)
    parser.add_argument("--first-sample", type=int, default=plan.first_sample, help="calls after which memory counts")
    parser.add_argument("--clients", type=int, default=plan.clients)
    parser.add_argument("--seed", type=int, default=plan.seed)
    parser.add_argument("--cap-seconds", type=float, default=plan.cap_seconds, help="wall-clock limit")
    parser.add_argument("--log", type=new_path, help="keep what the gateway writes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-save", action="store_true", help="print only")
    sys.exit(0 if anyio.run(run, parser.parse_args()) else 1)


if __name__ == "__main__":
    main()
