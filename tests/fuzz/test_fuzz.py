"""Some thousands of hostile inputs on every run; ``python -m tests.fuzz`` feeds hundreds of thousands."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.fuzzing import failures
from tests.fuzz.service import feed_apps, feed_ledger
from tests.fuzz.targets import TARGETS, Target

SEED = 8


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_a_decoder_raises_only_what_it_declares_and_takes_no_time(target: Target) -> None:
    assert [str(each) for each in failures(target, SEED, 20 * target.weight)] == []


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_some_inputs_get_past_the_decoder_and_some_do_not(target: Target) -> None:
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


def test_no_request_is_answered_with_an_error_of_the_server() -> None:
    assert feed_apps(SEED, 150) == []


def test_no_object_of_one_vm_changes_what_is_reserved_for_others() -> None:
    assert feed_ledger(SEED, 300) == []
