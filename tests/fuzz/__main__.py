"""``python -m tests.fuzz``: hundreds of thousands of damaged inputs; ends with ``N passed, M failed``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from time import monotonic, time_ns

from tests.fuzz.fuzzing import failures, shares
from tests.fuzz.service import feed_api_server, feed_apps, feed_ledger

SHOWN = 5
"""Failures of one target that are printed whole."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if an input violated a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=220_000, help="how many in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="the same seed makes the same inputs (default: new)")
    parser.add_argument("--only", default="", metavar="TEXT", help="targets whose name contains this")
    options = parser.parse_args(arguments)
    seed = time_ns() % 10**9 if options.seed is None else options.seed
    logging.disable(logging.CRITICAL)
    print(f"seed {seed}: repeat with --seed {seed} --inputs {options.inputs}", flush=True)
    passed = failed = 0
    for target, count in shares(options.inputs * 9 // 10):
        if options.only in target.name:
            began, found = monotonic(), list(failures(target, seed, count))
            _say(target.name, count, [str(each) for each in found], monotonic() - began)
            passed, failed = passed + count - len(found), failed + len(found)
    for name, feed, count in (
        ("requests to the services", feed_apps, options.inputs // 20),
        ("objects to a ledger", feed_ledger, options.inputs // 20),
        ("requests to the local API server", feed_api_server, options.inputs // 50),
    ):
        if options.only in name:
            began, wrong = monotonic(), feed(seed, count)
            _say(name, count, wrong, monotonic() - began)
            passed, failed = passed + count - len(wrong), failed + len(wrong)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _say(name: str, count: int, wrong: Sequence[str], took: float) -> None:
    print(f"{name}: {count} inputs, {len(wrong)} failed, {took:.1f} s", flush=True)
    for each in wrong[:SHOWN]:
        print(f"  {each}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
