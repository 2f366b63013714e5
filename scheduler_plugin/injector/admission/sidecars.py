"""Whether a Kubernetes has native sidecars: init containers with ``restartPolicy: Always`` (1.29 and later). Pure.

An older one would take the agent for an ordinary init container and wait for its end before it starts the guest.
"""

from __future__ import annotations

import re
from typing import Final

from protocol.kubernetes.objects import JsonObject, text

LEAST: Final = (1, 29)
_DIGITS: Final = re.compile(r"\d+")


def why_not(version: JsonObject) -> str:
    """The reason why no agent can be injected there, by the API server's ``/version``; empty if one can."""
    # Managed clusters have minor versions such as ``29+``.
    matches = [_DIGITS.match(text(version, part)) for part in ("major", "minor")]
    numbers = tuple(int(match[0]) for match in matches if match is not None)
    if len(numbers) == len(matches) and numbers >= LEAST:
        return ""
    version_text = text(version, "gitVersion") or "of an unknown version"
    return (
        f"native sidecars need Kubernetes {'.'.join(map(str, LEAST))} or later, "
        f"this is {version_text}: no agent is injected"
    )
