"""Translates scaling policies of the original project's agent (B.1, B.11). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.field_errors import shown

TARGETS: Final[Mapping[str, str]] = {"loadAverageFractionTarget": "cpu", "memoryUsageFractionTarget": "memory"}
"""Target shares of CPU and memory, and the section of this project's policy for each."""

# Parameters of the original's algorithm (zones, local file cache), for which this project uses measurements.
WITHOUT_COUNTERPART: Final = frozenset({
    "memoryTotalFractionTarget",
    *("enableLFCMetrics", "lfcUseLargestWindow", "lfcToMemoryRatio", "lfcWindowSizeMinutes"),
    "lfcMinWaitBeforeDownscaleMinutes",
    *("cpuStableZoneRatio", "cpuMixedZoneRatio"),
})  # fmt: skip

_FIELDS: Final = frozenset(TARGETS) | WITHOUT_COUNTERPART
_OURS: Final = frozenset({"cpu", "memory", "timing", "monitor", "sleep", "smoothing"})
"""Sections of this project's policy. A document with any of them is not translated, so the decoder rejects a mix."""

_WHOLE: Final = "scaling"
_DEFAULTS: Final = "defaultConfig"


def translate_original(document: object) -> tuple[object, tuple[str, ...]]:
    """Translate a policy of the original project; return any other document unchanged. Also return the ignored fields:
    a target of 0, by which the original would divide, and unknown fields.

    A target above 1 (a load average above the number of CPUs) becomes 1, because usage cannot exceed the CPUs.

    >>> translate_original({"loadAverageFractionTarget": 0.7, "enableLFCMetrics": True})
    ({'cpu': {'target': 0.7}}, ())
    >>> translate_original({"loadAverageFractionTarget": 0.7, "speed": 3})[1]
    ("'speed': ignored: not a field of the original policy",)
    """
    if not isinstance(document, dict):
        return document, ()
    # A whole ``config.json``: only its default policy concerns scaling.
    if isinstance(scaling := document.get(_WHOLE), dict) and isinstance(scaling.get(_DEFAULTS), dict):
        return translate_original(scaling[_DEFAULTS])
    if _FIELDS.isdisjoint(document) or not _OURS.isdisjoint(document):
        return document, ()
    values = {field: document.get(field) for field in TARGETS}
    # ``False == 0``, but a boolean is an error for the decoder to report.
    zeros = [field for field, value in values.items() if value == 0 and not isinstance(value, bool)]
    ignored = [f"{field}: ignored: expected a share above 0, got 0" for field in zeros]
    unknown = [name for name in document if name not in _FIELDS]
    ignored += [f"{shown(name)}: ignored: not a field of the original policy" for name in unknown]
    targets = {TARGETS[field]: value for field, value in values.items() if value is not None and field not in zeros}
    return {section: {"target": _share(value)} for section, value in targets.items()}, tuple(ignored)


def _share(value: object) -> object:
    # ``min(1.0, nan)`` would be 1.0; leave NaN for the decoder to reject.
    return 1.0 if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 1.0 else value
