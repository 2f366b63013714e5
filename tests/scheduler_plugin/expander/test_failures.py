"""Groups whose nodes never came are found by who asks again, and come last for a while."""

from __future__ import annotations

from protocol.units import Instant, Seconds
from scheduler_plugin.expander.failures import MOST_OPEN_CHOICES, FailureRules, Failures

RULES = FailureRules(grace=Seconds(5), remember=Seconds(1800), demote=Seconds(300), longest=Seconds(1000))


def at(seconds: float) -> Instant:
    return Instant(seconds)


def test_group_with_returning_pods_ranks_last() -> None:
    failures = Failures(RULES)
    failures.record_choice(["a"], ["p1", "p2"], at(0))
    assert failures.learn_outcomes(["p1", "p2", "other"], at(60)) == [
        "a got no nodes 1 times in a row; it comes last for 300 s"
    ]
    assert [failures.is_demoted("a", at(t)) for t in (60, 359, 360)] == [True, True, False]
    assert not failures.is_demoted("b", at(60))


def test_a_choice_is_judged_once() -> None:
    failures = Failures(RULES)
    failures.record_choice(["a"], ["p1"], at(0))
    assert failures.learn_outcomes(["p1"], at(10))
    assert failures.learn_outcomes(["p1"], at(20)) == []


def test_half_of_pods_must_be_ready() -> None:
    failures = Failures(RULES)
    failures.record_choice(["a"], ["p1", "p2", "p3", "p4"], at(0))
    assert failures.learn_outcomes(["p1"], at(10)) == []
    assert failures.learn_outcomes(["p1", "p2"], at(20))


def test_a_question_repeated_at_once_is_no_failure() -> None:
    failures = Failures(RULES)
    failures.record_choice(["a"], ["p1"], at(0))
    assert failures.learn_outcomes(["p1"], at(4)) == []
    assert failures.learn_outcomes(["p1"], at(5))


def test_failures_double_up_to_limit() -> None:
    failures, spans = Failures(RULES), []
    for attempt in range(4):
        now = 5000.0 * attempt
        failures.record_choice(["a"], ["p1"], at(now))
        failures.learn_outcomes(["p1"], at(now + 10))
        spans.append(next(t for t in range(0, 2000, 100) if not failures.is_demoted("a", at(now + 10 + t))))
    assert spans == [300, 600, 1000, 1000]


def test_silence_is_success_and_clears_the_record() -> None:
    failures = Failures(RULES)
    failures.record_choice(["a"], ["p1"], at(0))
    failures.learn_outcomes(["p1"], at(10))
    failures.record_choice(["a"], ["p2"], at(400))
    assert failures.learn_outcomes(["p3"], at(2200)) == []
    failures.record_choice(["a"], ["p4"], at(2300))
    assert failures.learn_outcomes(["p4"], at(2310)) == ["a got no nodes 1 times in a row; it comes last for 300 s"]


def test_earlier_success_leaves_later_choice_open() -> None:
    failures = Failures(RULES)
    failures.record_choice(["a"], ["p1"], at(0))
    failures.record_choice(["a", "b"], ["p2"], at(1600))
    failures.record_choice(["a"], ["p3"], at(1700))
    assert failures.learn_outcomes(["p2", "p3"], at(1801)) == [
        "one of a, b got no nodes; they are now tried one at a time",
        "a got no nodes 1 times in a row; it comes last for 300 s",
    ]


def test_an_answer_for_nobody_teaches_nothing() -> None:
    failures = Failures(RULES)
    failures.record_choice(["a"], [], at(0))
    assert failures.learn_outcomes(["p1"], at(10)) == []
    assert failures.learn_outcomes([], at(10)) == []


def test_failed_tie_tries_suspects_singly() -> None:
    failures = Failures(RULES)
    assert failures.one_of(["a", "b", "c"], at(0)) == ["a", "b", "c"]
    failures.record_choice(["a", "b", "c"], ["p1"], at(0))
    assert failures.learn_outcomes(["p1"], at(10)) == ["one of a, b, c got no nodes; they are now tried one at a time"]
    assert not any(failures.is_demoted(group, at(10)) for group in "abc")
    tried = []
    for attempt in range(3):
        now = at(10 + attempt)
        (group,) = failures.one_of(["a", "b", "c"], now)
        failures.record_choice([group], [f"q{attempt}"], now)
        tried.append(group)
    assert tried == ["a", "b", "c"]
    assert failures.one_of(["a", "d"], at(20)) == ["d"]
    assert failures.one_of(["a", "b", "c"], at(310)) == ["a", "b", "c"]
    assert failures.learn_outcomes(["q1"], at(60)) == ["b got no nodes 1 times in a row; it comes last for 300 s"]


def test_memory_is_bounded() -> None:
    failures = Failures(RULES)
    for number in range(MOST_OPEN_CHOICES + 1):
        failures.record_choice([f"g{number}"], [f"p{number}"], at(0))
    assert failures.learn_outcomes(["p0"], at(10)) == []
    assert failures.learn_outcomes(["p1"], at(10)) == ["g1 got no nodes 1 times in a row; it comes last for 300 s"]
