"""``python -m tests.vectors FILE...``: a line for each failing case, then ``N passed, N failed, N declined``.

Exit status 0 if nothing failed, 1 where a case did, 2 where a file cannot be read.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.vectors.case import VectorFileError, load_cases
from tests.vectors.families import families
from tests.vectors.registry import Outcome, run_case


def run_files(paths: Sequence[Path]) -> list[Outcome]:
    """The outcome of every case of every file, in file order."""
    cases = [case for path in paths for case in load_cases(path)]
    known = families(case.family for case in cases)
    return [run_case(case, known) for case in cases]


def report(outcomes: Sequence[Outcome]) -> list[str]:
    """The failing cases, one line each, and the counts."""
    count = Counter(
        "passed" if outcome.passed else "declined" if outcome.declined else "failed" for outcome in outcomes
    )
    failing = [f"FAIL {o.case.family} {o.case.group} {o.case.id}: {o.failure}" for o in outcomes if o.failure]
    return [*failing, f"{count['passed']} passed, {count['failed']} failed, {count['declined']} declined"]


def main(arguments: Sequence[str]) -> int:
    """Runs the files named on the command line and prints the report."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print("usage: python -m tests.vectors FILE...", file=sys.stderr)
        return 0 if arguments else 2
    try:
        outcomes = run_files([Path(argument) for argument in arguments])
    except (OSError, VectorFileError, KeyError, TypeError, msgspec.DecodeError) as error:
        print(f"cannot read the vectors: {error}", file=sys.stderr)
        return 2
    print("\n".join(report(outcomes)))
    return 1 if any(outcome.failure for outcome in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
