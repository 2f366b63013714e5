"""Each check on a cluster in order, and on one with a single fault: the right line names it, and no other does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.autoscale.check.facts import Facts, Server
from scripts.autoscale.check.finding import Finding, Level
from scripts.autoscale.check.looks import Seen, Unseen
from scripts.autoscale.check.table import CHECKS, judged
from tests.scripts.check.changes import Fault, no_answer, without
from tests.scripts.check.faults import FAULTS
from tests.scripts.check.good_state import NAMESPACE, NOW, good


def wrong(facts: Facts, *, before: bool = False) -> dict[str, Finding]:
    return {each.check: each for each in judged(facts, before=before) if each.level >= Level.WARNING}


@pytest.mark.parametrize("before", [False, True])
def test_nothing_is_wrong_with_a_cluster_in_order(before: bool) -> None:
    assert wrong(good(), before=before) == {}


def test_nothing_is_skipped_in_a_cluster_that_has_everything() -> None:
    assert [each.check for each in judged(good(), before=False) if each.level is Level.SKIPPED] == []


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_named_by_its_line_and_no_other(fault: Fault) -> None:
    found = wrong(fault.change(good()), before=fault.before)
    assert {name: each.problems for name, each in found.items() if name != fault.check} == {}
    finding = found[fault.check]
    assert (fault.said in " ".join(finding.problems), finding.level, bool(finding.remedy)) == (
        True,
        fault.level,
        True,
    ), finding
    assert "{" not in finding.remedy.replace("{}", "")


def test_a_scheduler_that_acts_alone_needs_no_lease() -> None:
    assert wrong(without("leases", "autoscaling-scheduler")(good())) == {}


def test_every_line_has_a_fault_that_it_names() -> None:
    assert {each.id for each in CHECKS} - {each.check for each in FAULTS} == set()


def test_nothing_is_asked_after_a_line_without_which_nothing_can_be() -> None:
    assert [each.check for each in judged(no_answer(good()), before=False)] == ["api-answers"]


def test_what_could_not_be_looked_at_is_skipped_with_its_reason() -> None:
    assert good().now == NOW
    found = list(judged(Facts(NAMESPACE, NOW, Seen(Server("v1.36.2")), "0.2.0"), before=False))
    assert {each.level for each in found[2:]} == {Level.SKIPPED}
    refused_look = Unseen("you may not list secrets in autoscale-system")
    skipped = {each.check: each.said for each in judged(replace(good(), secrets=refused_look), before=False)}
    assert skipped["certificates-current"] == "you may not list secrets in autoscale-system"
