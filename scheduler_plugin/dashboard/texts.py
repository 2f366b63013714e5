"""Texts of ``autoscale-dashboard``, except states and explanations. Pure.

States are in ``core/states``, explanations of databases in ``explanation``. Some texts are templates for
``str.format``, whose fields mypy checks.
"""

from __future__ import annotations

from typing import Final

# To the browser

NO_ANSWER: Final = "the API server does not respond; try again"
NO_OBJECT: Final = "there is no such object"
NO_FILE: Final = "there is no such file"
SIGN_IN: Final = "sign in first"
NOT_ADMITTED: Final = "this token or link is not valid"
OTHER_SITE: Final = "only the page itself may send this request"
BODY_EXPECTED: Final = 'expected {"token": …}'
MANY_PAGES: Final = "too many pages are open; try again"
OTHER_HOST: Final = "unknown host name"
NOT_LISTED: Final = "not listed yet: {kinds}"

# On rows and bills

NO_CONTACT: Final = "no contact with its agent"
TROUBLE: Final = "its agent reports problems: {parts}"
NOT_PICKED_UP: Final = "waiting for neonvm-controller to start the migration"
NO_NODE: Final = "waiting for a node for the target pod"
PUBLISHED_PRICES: Final = "the published reference prices"
OWN_PRICES: Final = "the scheduler's price table"

# On sleep

ASLEEP: Final = "asleep{since}, {sessions} open{soon}"
WAKES_IN: Final = "; wakes in about {seconds:.1f} s"
WAKING: Final = "waking{since}{why}"
WOKEN: Final = "woke from its last sleep{at}{seconds}{why}"
WOKE_IN: Final = " in {seconds:.2f} s"
RESTARTED: Final = "booted from its disk{at} instead of waking, so its sessions are lost{why}"
REFUSED_SLEEP: Final = "refused the last order to sleep{at}{why}"
SOMETHING: Final = "something woke it"
WOKEN_FOR_NOTHING: Final = "The VM's last wake was unnecessary: {who}, and there has been no client activity since"
