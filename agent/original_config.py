"""Scaling policies as the original agent's users write them, in the words of ours (B.1, B.11). Pure.

Rules that hold here:

- Two forms are known by their fields: the annotation of one VM (``loadAverageFractionTarget`` …), and the whole
  ``config.json`` of the original agent, of which only ``scaling.defaultConfig`` is a policy.
- Targets are taken over. What tunes the original's own algorithm (its zones, its file cache) has no counterpart: our
  policy measures what those settings guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TARGETS: Final[Mapping[str, str]] = {"loadAverageFractionTarget": "cpu", "memoryUsageFractionTarget": "memory"}
"""The shares of CPU and memory that may be in use, and the section of ours that says the same."""

WITHOUT_COUNTERPART: Final = frozenset({
    "memoryTotalFractionTarget",
    *("enableLFCMetrics", "lfcUseLargestWindow", "lfcToMemoryRatio", "lfcWindowSizeMinutes"),
    "lfcMinWaitBeforeDownscaleMinutes",
    *("cpuStableZoneRatio", "cpuMixedZoneRatio"),
})  # fmt: skip

_FIELDS: Final = frozenset(TARGETS) | WITHOUT_COUNTERPART
_WHOLE: Final = "scaling"
_DEFAULTS: Final = "defaultConfig"


def in_our_words(document: object) -> object:
    """The policy as ours says it, where ``document`` is one of the original's; any other as it is.

    A target above 1 (a load average above the CPUs) becomes 1: no more than all of a CPU can be in use.

    >>> in_our_words({"loadAverageFractionTarget": 0.7, "enableLFCMetrics": True})
    {'cpu': {'target': 0.7}}
    """
    if not isinstance(document, dict):
        return document
    if isinstance(scaling := document.get(_WHOLE), dict) and isinstance(scaling.get(_DEFAULTS), dict):
        return in_our_words(scaling[_DEFAULTS])
    if not document or not document.keys() <= _FIELDS:
        return document
    found = {section: document.get(field) for field, section in TARGETS.items()}
    return {section: {"target": _share(value)} for section, value in found.items() if value is not None}


def _share(value: object) -> object:
    return min(1.0, value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
