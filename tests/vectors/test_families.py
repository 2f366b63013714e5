"""Every worked case passes or is declined with a reason, and the runner tells failures aloud."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vectors.__main__ import main, report, run_files
from tests.vectors.case import Case, VectorFileError, load_cases
from tests.vectors.families import families
from tests.vectors.registry import Check, Declined, Family, run_case, same

HERE = Path(__file__).parent


@pytest.mark.parametrize("family", ["smoothing", "ranking", "hvpa", "tortoise"])
def test_every_case_passes_or_is_declined(family: str) -> None:
    outcomes = run_files([HERE / f"{family}_vectors.json"])
    assert [f"{outcome.case.id}: {outcome.failure}" for outcome in outcomes if outcome.failure] == []
    assert sum(outcome.passed for outcome in outcomes) >= 50


@pytest.mark.parametrize("family", ["smoothing", "ranking", "hvpa", "tortoise"])
def test_every_entry_is_for_a_group_or_case_of_the_file(family: str) -> None:
    cases, known = load_cases(HERE / f"{family}_vectors.json"), families([family])[family]
    assert known.groups.keys() | known.declined.keys() <= {case.group for case in cases} | {case.id for case in cases}


def made(family: str, group: str, given: object, expected: object, text: str = "", **more: object) -> Case:
    return Case(family, group, "c1", {"input": given, "expected": expected, **more}, text).fresh()


def case(group: str = "double", given: object = 2, expected: object = 4) -> Case:
    return made("math", group, given, expected)


def decline(_: Case) -> None:
    raise Declined("not ours")


MATH = {
    "math": Family(
        "math",
        {
            "double": lambda c: c.input * 2,
            "even": Check(lambda c: c.input % 2 == 0, lambda c: c.expected["even"], {"expected.of": "only documents"}),
            "first": lambda c: c.input["values"][0],
            "refused": decline,
        },
        {"odd": "evens only"},
    )
}


@pytest.mark.parametrize(
    ("asked", "failure", "declined"),
    [
        (case(), None, None),
        (case(expected=5), "expected 5, got 4", None),
        (case(given=None), "raised TypeError: unsupported operand type(s) for *: 'NoneType' and 'int'", None),
        (case("even", 2, {"even": True, "of": 2}), None, None),
        (case("even", 2, {"even": True, "odd": False}), "the case does not use expected.odd", None),
        (case("first", {"values": [4, 5], "unit": {}}), "the case does not use input.unit, input.values.1", None),
        (case("first", {"values": [4]}), None, None),
        (case("odd"), None, "evens only"),
        (case("refused"), None, "not ours"),
        (case("triple"), "unknown group 'triple'", None),
        (made("art", "double", 1, 1), "unknown family 'art'", None),
    ],
)
def test_a_case_passes_fails_or_is_declined(asked: Case, failure: str | None, declined: str | None) -> None:
    outcome = run_case(asked, MATH)
    assert (outcome.failure, outcome.declined) == (failure, declined)


def test_the_report_names_failures_and_counts_everything() -> None:
    outcomes = [run_case(one, MATH) for one in (case(), case(expected=5), case("odd"))]
    assert report(outcomes) == ["FAIL math double c1: expected 5, got 4", "1 passed, 1 failed, 1 declined"]


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1.0000001, True),
        (1, 1.1, False),
        (True, 1, False),
        ([1, {"a": 2}], (1, {"a": 2.0}), True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1], [1, 2], False),
        (None, None, True),
        ("x", "x", True),
        (float("nan"), float("nan"), True),
    ],
)
def test_numbers_compare_within_tolerance_and_everything_else_exactly(left: object, right: object, equal: bool) -> None:
    assert same(left, right, 1e-6) is equal


def test_the_command_prints_counts_and_exits_by_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = tmp_path / "music_vectors.json"
    unknown.write_text('{"groups": [{"id": "scale", "cases": [{"desc": "c major", "in": 1, "expect": 1}]}]}')
    assert main([str(HERE / "smoothing_vectors.json")]) == 0
    assert main([str(unknown)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "79 passed, 0 failed, 3 declined",
        "FAIL music scale scale/1 c major: unknown family 'music'",
        "0 passed, 1 failed, 0 declined",
    ]


@pytest.mark.parametrize("text", ["[]", "{}", "not json", '{"vectors": [{}]}'])
def test_a_file_that_is_no_vector_file_is_refused_with_status_2(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    if text in ("[]", "{}"):
        with pytest.raises(VectorFileError, match=r"bad\.json"):
            load_cases(path)


def test_without_files_the_usage_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main([]), main(["--help"])) == (2, 0)
    assert "usage: python -m tests.vectors FILE..." in capsys.readouterr().err
