"""Every worked case passes or is declined with a reason, and the runner reports failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.vectors.__main__ import main, report, run_files
from tests.vectors.case import Case, VectorFileError, load_cases
from tests.vectors.families import families
from tests.vectors.registry import Check, Declined, Family, chosen, run_case, same

HERE = Path(__file__).parent


@pytest.mark.parametrize("family", ["smoothing", "ranking", "hvpa", "tortoise"])
def test_every_case_passes_or_is_declined(family: str) -> None:
    outcomes = run_files([HERE / f"{family}_vectors.json"])
    assert [f"{outcome.case.id}: {outcome.failure}" for outcome in outcomes if outcome.failure] == []
    assert sum(outcome.passed for outcome in outcomes) >= 50


@pytest.mark.parametrize("family", ["smoothing", "ranking", "hvpa", "tortoise"])
def test_entries_refer_to_groups_or_cases(family: str) -> None:
    cases, known = load_cases(HERE / f"{family}_vectors.json"), families([family])[family]
    assert known.groups.keys() | known.declined.keys() <= {case.group for case in cases} | {case.id for case in cases}


def made(family: str, group: str, given: object, expected: object, text: str = "", **more: object) -> Case:
    return Case(family, group, "c1", {"input": given, "expected": expected, **more}, text).fresh()


def case(group: str = "double", given: object = 2, expected: object = 4) -> Case:
    return made("math", group, given, expected)


def decline(_: Case) -> None:
    raise Declined("not ours")


SOME = {"half": 1, "zero": 0, "double": 4, "four": 4}
MATH = {
    "math": Family(
        "math",
        {
            "double": lambda c: c.input * 2,
            "even": Check(lambda c: c.input % 2 == 0, lambda c: c.expected["even"], {"expected.of": "only documents"}),
            "first": lambda c: c.input["values"][0],
            "refused": decline,
            "some": lambda c: chosen(c, {**SOME, "half": c.input // 2}, ("half", "zero"), ("double", "four")),
            "text": lambda c: len(c.text),
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
        (case("even", 2, {"even": True, "of": 2, "odd": False}), "the case does not use expected.odd", None),
        (case("even", 2, {"even": True}), "the case lacks expected.of", None),
        (case("even", 2, {"of": 2}), "the case lacks expected.even", None),
        (case("first", {"numbers": [4]}), "the case lacks input.values", None),
        (case("some", 2, {"half": 1, "zero": 0}), None, None),
        (case("some", 2, {"half": 1, "zero": 0, "double": 4, "four": 4}), None, None),
        (case("some", 2, {"half": 1, "zero": 0, "double": 4}), "the case lacks expected.four", None),
        (case("some", 2, {"half": 1}), "the case lacks expected.zero", None),
        (case("some", 2, {"half": 1, "zero": 0, "third": 1}), "the case does not use expected.third", None),
        (replace(case(), content={"input": 2}), "the case lacks expected", None),
        (replace(case("text"), content={"expected": 7, "steps": []}), "the case lacks input", None),
        (replace(case(), semantics="guessed"), "unknown semantics 'guessed'", None),
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


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "not json",
        '{"vectors": [{}]}',
        '{"vectors": [], "defaults": {"cpu": 1}}',
        '{"vectors": [], "groups": []}',
    ],
)
def test_invalid_vector_file_exits_2(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    if text in ("[]", "{}"):
        with pytest.raises(VectorFileError, match=r"bad\.json"):
            load_cases(path)


def test_without_files_the_usage_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main([]), main(["--help"])) == (2, 0)
    assert "usage: python -m tests.vectors FILE..." in capsys.readouterr().err


def failures(path: Path) -> list[str]:
    return [str(outcome.failure) for outcome in run_files([path]) if not outcome.declined]


FAMILIES = ("smoothing", "ranking", "hvpa", "tortoise", "neon")
Mutation = Callable[[dict[str, Any]], str]
"""Changes a case, and returns what its failure says."""


@cache
def declined_of(path: Path) -> set[str]:
    return {outcome.case.id for outcome in run_files([path]) if outcome.declined}


def unknown_input(case: dict[str, Any]) -> str:
    name = next(each for each in ("input", "in") if isinstance(case.get(each), dict))
    case[name] = {**case[name], "phaseOfMoon": 3}
    return "input.phaseOfMoon"


def unknown_part(case: dict[str, Any]) -> str:
    case["phaseOfMoon"] = {"of": 3}
    return "phaseOfMoon.of"


def unknown_kind(case: dict[str, Any]) -> str:
    case["op"] = "teleport"
    return "does not use op"


def both_spellings(case: dict[str, Any]) -> str:
    short, long = ("in", "input") if "input" in case else ("expect", "expected")
    case[short], case[long] = 7, case.get(long, 7)
    return f"does not use {short}"


def missing_expectation(case: dict[str, Any]) -> str:
    del case["expected" if "expected" in case else "expect"]
    return "expected"


def missing_field(case: dict[str, Any]) -> str:
    found = case["expected" if "expected" in case else "expect"]
    del found[next(iter(found))]
    return ""


def unknown_field(case: dict[str, Any]) -> str:
    case["expected" if "expected" in case else "expect"]["phaseOfMoon"] = 3
    return "phaseOfMoon"


def is_object(value: object) -> bool:
    return isinstance(value, dict) and bool(value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("mutation", "applies"),
    [
        (unknown_input, lambda case: is_object(case.get("input")) or is_object(case.get("in"))),
        (unknown_part, bool),
        (unknown_kind, bool),
        (both_spellings, lambda case: is_object(case.get("input"))),
        (missing_expectation, lambda case: ("expected" in case or "expect" in case) and "steps" not in case),
        (missing_field, lambda case: is_object(case.get("expected", case.get("expect"))) and "steps" not in case),
        (unknown_field, lambda case: is_object(case.get("expected", case.get("expect")))),
    ],
)
def test_mutated_case_fails(family: str, mutation: Mutation, applies: Callable[[Any], bool], tmp_path: Path) -> None:
    """Each case of each file is changed on its own; what was declined before is left out."""
    path = HERE / f"{family}_vectors.json"
    declined = declined_of(path)
    document = json.loads(path.read_text())
    groups = document.get("groups", [{"cases": document.get("vectors")}])
    said: dict[str, str] = {}
    for group in groups:
        for number, case in enumerate(group["cases"], start=1):
            known = case.get("id") or f"{group['id']}/{number} {case.get('desc', '')}".strip()
            if known not in declined and applies(case):
                said[f"{known} mutated"] = mutation(case)
            if "id" in case:
                case["id"] = f"{known} mutated"
            elif known not in declined:
                case["desc"] = f"{case.get('desc', '')} mutated".strip()
    changed = tmp_path / f"{family}_vectors.json"
    changed.write_text(json.dumps(document))
    found = {outcome.case.id: str(outcome.failure or "") for outcome in run_files([changed])}
    assert {name: found[name] for name, path in said.items() if not found[name] or path not in found[name]} == {}


def test_unknown_group_or_key_fails(tmp_path: Path) -> None:
    document = json.loads((HERE / "neon_vectors.json").read_text())
    first = deepcopy(next(group for group in document["groups"] if group["id"] == "version_range"))
    path = tmp_path / "neon_vectors.json"
    path.write_text(json.dumps({"groups": [{**first, "id": "tides"}, {**first, "phaseOfMoon": 3}]}))
    count = len(first["cases"])
    assert failures(path) == ["unknown group 'tides'"] * count + ["the case does not use group.phaseOfMoon"] * count
