"""Every worked case of the original is answered, or declined with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vectors.case import Case, load_cases
from tests.vectors.neon import DECLINED, FAMILY, GROUPS
from tests.vectors.registry import run_case

CASES = load_cases(Path(__file__).with_name("neon_vectors.json"))


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case_passes_or_is_declined(case: Case) -> None:
    assert run_case(case, {"neon": FAMILY}).failure is None


def test_entries_refer_to_groups() -> None:
    assert GROUPS.keys() | DECLINED.keys() == {case.group for case in CASES}
