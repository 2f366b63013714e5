"""When a VPA's recommendation is not to be believed, by the conditions that it reports of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DISTRUSTED: Final = ("ConfigUnsupported", "ConfigDeprecated", "LowConfidence")
"""Each of these conditions, while it is True, makes a recommendation unbelievable."""


def is_believable(conditions: Mapping[str, str]) -> bool:
    """Return True if a recommendation beside these conditions can be used: ``True``, ``False`` or ``Unknown`` by type.

    >>> is_believable({"RecommendationProvided": "True"}), is_believable({"LowConfidence": "True"})
    (True, False)
    """
    distrusted = any(conditions.get(kind) == "True" for kind in DISTRUSTED)
    # A VPA that reports no such condition is believed.
    return not distrusted and conditions.get("RecommendationProvided", "True") == "True"
