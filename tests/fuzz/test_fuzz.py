"""Some thousands of hostile inputs on every run; ``python -m tests.fuzz`` feeds hundreds of thousands."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.fuzzing import failures
from tests.fuzz.service import feed_apps, feed_ledger
from tests.fuzz.targets import TARGETS, Target

SEED = 8


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_decoders_raise_declared_errors_quickly(target: Target) -> None:
    assert [str(each) for each in failures(target, SEED, 20 * target.weight)] == []


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_some_inputs_decode_and_some_fail(target: Target) -> None:
    outcomes: set[str] = set()
    possible = {"taken", "refused"} if target.errors else {"taken"}
    for number in range(200):
        if outcomes >= possible:
            break
        try:
            target.feed(target.make(Random(number)))
            outcomes.add("taken")
        except target.errors:
            outcomes.add("refused")
    assert "taken" in outcomes, "inputs that all fail at the first check show nothing"
    assert "refused" in outcomes or not target.errors


def test_no_request_causes_server_error() -> None:
    assert feed_apps(SEED, 150) == []


def test_object_of_one_vm_affects_no_other() -> None:
    assert feed_ledger(SEED, 300) == []
