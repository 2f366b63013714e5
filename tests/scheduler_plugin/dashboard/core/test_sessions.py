from __future__ import annotations

import pytest

from protocol.kubernetes.access_reviews import Scope
from protocol.units import Instant
from scheduler_plugin.dashboard.core import sessions as dashboard_sessions
from scheduler_plugin.dashboard.core.sessions import CHECKED_FOR, LASTS, MOST_OF_ONE, Sessions, Visitor
from scheduler_plugin.dashboard.core.visibility import ALL, VisibilityFilter

BEGAN = Instant(100.0)
NAMELESS = Visitor("", ALL)


def test_a_link_opens_one_session() -> None:
    sessions = Sessions()
    assert not sessions.take_link("")
    sessions.offer("one")
    assert [sessions.take_link("two"), sessions.take_link("one"), sessions.take_link("one")] == [False, True, False]


def test_a_session_ends_by_itself_and_when_told() -> None:
    sessions = Sessions()
    session = sessions.begin("cookie", NAMELESS, BEGAN)
    late = Instant(BEGAN + LASTS)
    assert sessions.find("cookie", BEGAN) == session == sessions.current(session, BEGAN)
    assert (sessions.find("", BEGAN), sessions.find("forged", BEGAN), sessions.current(session, late)) == (
        None,
        None,
        None,
    )
    assert (sessions.find("cookie", late), sessions.find("cookie", BEGAN)) == (None, None)
    again = sessions.begin("cookie", NAMELESS, BEGAN)
    sessions.end(again)
    assert sessions.find("cookie", BEGAN) is None


def test_token_session_is_reviewed_link_not() -> None:
    sessions = Sessions()
    by_link, by_token = sessions.begin("one", NAMELESS, BEGAN), sessions.begin("two", NAMELESS, BEGAN, token="token")
    later = Instant(BEGAN + CHECKED_FOR)
    assert [by_link.is_due(later), by_token.is_due(BEGAN), by_token.is_due(later)] == [False, False, True]
    less = Visitor("", VisibilityFilter(frozenset({Scope("shop")})))
    assert sessions.checked(by_token, less, later) == sessions.find("two", later)
    assert not by_token.is_due(BEGAN)
    sessions.end(by_token)
    assert sessions.checked(by_token, less, later) is None
    assert sessions.find("two", later) is None


def test_the_oldest_of_too_many_sessions_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_sessions, "MOST", 1)
    sessions = Sessions()
    sessions.begin("one", NAMELESS, BEGAN)
    second = sessions.begin("two", NAMELESS, BEGAN)
    assert (sessions.find("one", BEGAN), sessions.find("two", BEGAN)) == (None, second)


def test_nothing_of_a_token_is_told() -> None:
    assert "hush" not in repr(Sessions().begin("cookie", NAMELESS, BEGAN, token="hush"))


def test_repeated_sign_in_ends_own_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_sessions, "MOST", MOST_OF_ONE + 1)
    sessions = Sessions()
    of_bob = sessions.begin("bob's", Visitor("bob", ALL), BEGAN, "token")
    for number in range(MOST_OF_ONE + 5):
        sessions.begin(f"anna's {number}", Visitor("anna", ALL), BEGAN, "token")
    assert sessions.find("bob's", BEGAN) == of_bob
    found = [sessions.find(f"anna's {number}", BEGAN) is not None for number in range(MOST_OF_ONE + 5)]
    assert found == [False] * 5 + [True] * MOST_OF_ONE


def test_service_accounts_displace_their_own_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users who may create one may create many."""
    monkeypatch.setattr(dashboard_sessions, "MOST", 4)
    sessions = Sessions()
    of_bob = sessions.begin("bob's", Visitor("bob", ALL), BEGAN, "token")
    for number in range(9):
        sessions.begin(f"{number}", Visitor(f"system:serviceaccount:shop:user-{number}", ALL), BEGAN, "token")
    assert sessions.find("bob's", BEGAN) == of_bob
    assert [sessions.find(f"{number}", BEGAN) is not None for number in range(9)] == [False] * 6 + [True] * 3
