"""Texts of ``autoscale-dashboard``, except states and explanations. Pure.

States are in ``core/states``, explanations of databases in ``story``. Texts with fields are templates for
``str.format``; mypy checks the fields.
"""

from __future__ import annotations

from typing import Final

# To the browser

NO_ANSWER: Final = "the API server does not answer: try again"
NO_OBJECT: Final = "there is no such object"
NO_FILE: Final = "there is no such file"
SIGN_IN: Final = "sign in first"
NOT_ADMITTED: Final = "this token or link is not valid"
OTHER_SITE: Final = "expected a request of the page itself"
BODY_EXPECTED: Final = 'expected {"token": …}'
MANY_PAGES: Final = "too many pages are open: try again"
OTHER_HOST: Final = "this host name is not answered"
NOT_LISTED: Final = "not listed yet: {kinds}"

# On rows and bills

NO_CONTACT: Final = "no contact with its agent"
TROUBLE: Final = "its agent has trouble with {parts}"
NOT_TAKEN_UP: Final = "waiting for neonvm-controller to take the migration up"
NO_NODE: Final = "waiting for a node that takes the target pod"
PUBLISHED_PRICES: Final = "the published reference prices"
OWN_PRICES: Final = "the scheduler's price table"

# On sleep

ASLEEP: Final = "asleep{since}, {sessions} open{soon}"
WAKES_IN: Final = "; wakes in about {seconds:.1f} s"
WAKING: Final = "waking{since}{why}"
WOKEN: Final = "woke from its last sleep{at}{seconds}{why}"
WOKE_IN: Final = " in {seconds:.2f} s"
RESTARTED: Final = "booted from its disk{at} instead of waking, and lost its sessions{why}"
REFUSED_SLEEP: Final = "refused the last order to sleep{at}{why}"
SOMETHING: Final = "something woke it"
WOKEN_FOR_NOTHING: Final = "The VM's last wake was without use: {who}, and no client activity since"
