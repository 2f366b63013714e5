"""Every identity of ours tries on a real API server what it must not do, and does what it is there for.

Each shows a real token. What a policy or a role refuses is the table of ``attempts.py``, which docs/security.md shows.
"""

from __future__ import annotations

import pytest

from tests.kubernetes.attacks.attacked import Attacked, attacked
from tests.kubernetes.attacks.attempts import ATTEMPTS
from tests.kubernetes.attacks.table import rows
from tests.kubernetes.attacks.world import NODE_AGENT
from tests.kubernetes.failing.bare_control_plane import BareControlPlane
from tests.kubernetes.failing.fleet import until

pytestmark = pytest.mark.kubernetes


async def test_attacks_end_as_documented(plane: BareControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
    async with attacked(plane) as cluster:
        await until_in_force(cluster)
        ends = {str(tried): await cluster.end_of(tried) for tried in ATTEMPTS}
    with capsys.disabled():
        print("", *rows((tried, ends[str(tried)]) for tried in ATTEMPTS), sep="\n")
    wrong = {str(tried): ends[str(tried)] for tried in ATTEMPTS if ends[str(tried)] != tried.refused_by}
    assert wrong == {}


async def until_in_force(cluster: Attacked) -> None:
    """Returns once the API server judges by the policies, which takes it a moment."""
    forbidden = next(each for each in ATTEMPTS if each.who is NODE_AGENT and each.refused_by.startswith("policy"))

    async def is_refused() -> bool:
        return await cluster.end_of(forbidden) == forbidden.refused_by

    await until(is_refused, "the policies are in force", 30.0)
