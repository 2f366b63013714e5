"""The format of each stage in a policy file: fields, defaults and ranges (S0.7).

Parsing checks the ranges, so every parsed spec can be built, except for rules on the order of stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Literal

import msgspec
from msgspec import structs

from protocol.durations import parse_duration
from protocol.field_errors import check, shown
from protocol.smoothing.curves import CurveModel, Segments
from protocol.smoothing.growth import Surge, Sustain
from protocol.smoothing.histogram import HistogramStage
from protocol.smoothing.hold import Hold
from protocol.smoothing.hysteresis import Hysteresis
from protocol.smoothing.percentile import ENOUGH, MAX_ENOUGH, Percentile
from protocol.smoothing.quantize import Quantize
from protocol.smoothing.stage import LARGEST, Curve, Stage
from protocol.units import QuantityError, Seconds, parse_quantity

_LONGEST_SPAN: Final = 366 * 86400.0
_MAX_TIMES: Final = 1000.0
"""A larger factor is certainly a typo."""


class Quantity(float):
    """A quantity (>= 0) in the unit of the policy's resource."""


_SMALLEST_CPU: Final = Quantity(0.01)
_SMALLEST_MEMORY: Final = Quantity(1e7)


class Duration(float):
    """A duration in seconds, above zero and at most a year."""


def read_level(raw: object) -> Quantity:
    """Parse a quantity such as 2, ``"250m"`` or ``"1Gi"``. Raises ``ValueError``.

    >>> read_level("250m"), read_level("1Ki")
    (0.25, 1024.0)
    """
    if not isinstance(raw, (str, int, float)):
        raise ValueError(f'expected a quantity such as 2, "250m" or "1Gi", got {shown(raw)}')
    level = parse_quantity(raw)
    if level < 0:
        raise QuantityError(f"expected a quantity of zero or more, got {shown(raw)}")
    return Quantity(level)


def read_span(raw: object) -> Duration:
    """Parse seconds as a number, or a duration such as ``"30s"``. Raises ``ValueError``.

    >>> read_span("5m")
    300.0
    """
    seconds = parse_duration(raw)
    if not 0 < seconds <= _LONGEST_SPAN:
        raise ValueError(f"expected a span above zero and at most a year, got {shown(raw)}")
    return Duration(seconds)


READERS: Final[dict[type, Callable[[object], object]]] = {Quantity: read_level, Duration: read_span}


class StageSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """One stage in a policy file."""

    def build(self, before: Sequence[Stage]) -> Stage:
        """Create the stage, to follow the stages ``before``. Raises ``ValueError`` if it is not allowed after them."""
        raise TypeError(f"{type(self).__name__} builds nothing, not even after {before}")


class ModelSpec(StageSpec, frozen=True):
    """``model``: base + slope * input / per, at most max."""

    base: Quantity = Quantity(0)
    slope: Quantity = Quantity(1)
    per: Quantity = Quantity(1)
    max: Quantity = Quantity(inf)

    def __post_init__(self) -> None:
        check(self.per > 0, "per above zero")

    def build(self, before: Sequence[Stage]) -> Stage:  # noqa: ARG002 - allowed anywhere
        """See ``StageSpec``."""
        return CurveModel(self.base, self.slope, self.per, self.max)


class SegmentSpec(StageSpec, frozen=True):
    """One segment: multiples of ``every`` from ``at``."""

    every: Quantity
    at: Quantity = Quantity(0)

    def __post_init__(self) -> None:
        check(self.every > 0, "every above zero")


class SegmentsSpec(StageSpec, frozen=True):
    """``segments``: round the input up in steps."""

    steps: list[SegmentSpec]

    def __post_init__(self) -> None:
        check(bool(self.steps), "at least one step")

    def build(self, before: Sequence[Stage]) -> Stage:  # noqa: ARG002 - allowed anywhere
        """See ``StageSpec``."""
        return Segments([(step.at, step.every) for step in self.steps])


class HysteresisSpec(StageSpec, frozen=True):
    """``hysteresis``: delay shrinking by ``inputs`` of the preceding curves, or by ``outputs``/``ratio`` of values."""

    inputs: Quantity | None = None
    outputs: Quantity = Quantity(0)
    ratio: float = 0.0
    patience: Duration | None = None

    def __post_init__(self) -> None:
        check(0 <= self.ratio < 1, "ratio of at least 0 and below 1")
        # ``inputs`` is in the unit of the curves' input, the others in the unit of their output.
        check(self.inputs is None or not (self.outputs or self.ratio), "either inputs, or outputs and ratio")

    def build(self, before: Sequence[Stage]) -> Stage:
        """See ``StageSpec``."""
        patience = None if self.patience is None else Seconds(self.patience)
        if self.inputs is None:
            return Hysteresis.by_outputs(self.outputs, self.ratio, patience)
        curves = [stage for stage in before if isinstance(stage, Curve)]
        # The shifted input passes through the preceding stages, so they must be stateless.
        check(len(curves) == len(before), "only model, segments and quantize before a hysteresis with inputs")

        def curve(value: float) -> float:
            for stage in curves:
                # Cap before and after, like between the stages of a pipeline.
                value = min(LARGEST, stage.at(min(LARGEST, value)))
            return value

        return Hysteresis.by_inputs(curve, self.inputs, patience)


class HoldSpec(StageSpec, frozen=True):
    """``hold``: shrink to ``keep`` of the maximum of a whole window, and ``extra``; with ``pause`` between shrinks."""

    window: Duration = Duration(300)
    pause: Duration | None = None
    keep: float = 1.0
    extra: Quantity = Quantity(0)

    def __post_init__(self) -> None:
        check(0 < self.keep <= 1, "keep above 0 and at most 1")

    def build(self, before: Sequence[Stage]) -> Stage:  # noqa: ARG002 - allowed anywhere
        """See ``StageSpec``."""
        return Hold(Seconds(self.window), Seconds(self.pause or 0.0), self.keep, self.extra)


class PercentileSpec(StageSpec, frozen=True):
    """``percentile``: hold between P(low) and P(high) of a window, move to P(target)."""

    window: Duration = Duration(300)
    target: float = 0.80
    low_threshold: float = 0.60
    high_threshold: float = 0.95
    min_samples: int = ENOUGH

    def __post_init__(self) -> None:
        check(0 <= self.low_threshold <= self.target <= self.high_threshold <= 1, "0 <= low <= target <= high <= 1")
        # A long window may contain no more samples, so a larger minimum would never be reached.
        check(1 <= self.min_samples <= MAX_ENOUGH, f"minSamples of 1 to {MAX_ENOUGH}")

    def build(self, before: Sequence[Stage]) -> Stage:  # noqa: ARG002 - allowed anywhere
        """See ``StageSpec``."""
        thresholds = self.target, self.low_threshold, self.high_threshold
        return Percentile(Seconds(self.window), *thresholds, self.min_samples)


class HistogramSpec(StageSpec, frozen=True):
    """``histogram``: a percentile of the decaying past times a margin, as a floor or as the target."""

    percentile: float = 0.90
    margin: float = 1.15
    half_life: Duration = Duration(86400)
    smallest: Quantity | None = None
    use: Literal["floor", "target"] = "floor"

    def __post_init__(self) -> None:
        check(0 <= self.percentile <= 1, "percentile of 0 to 1")
        check(0 < self.margin <= _MAX_TIMES, f"margin above zero and at most {_MAX_TIMES:g}")
        check(self.smallest is None or self.smallest > 0, "smallest above zero")

    def build(self, before: Sequence[Stage]) -> Stage:  # noqa: ARG002 - allowed anywhere
        """See ``StageSpec``."""
        smallest = _SMALLEST_CPU if self.smallest is None else self.smallest
        return HistogramStage(Seconds(self.half_life), self.percentile, self.margin, smallest, self.use)

    def of(self, resource: Literal["cpu", "memory"]) -> HistogramSpec:
        """This spec with the default smallest bucket for ``resource``, unless it is set."""
        if self.smallest is not None:
            return self
        # Buckets grow by a factor, so buckets that start at a hundredth of a CPU would end below a gigabyte.
        return structs.replace(self, smallest=_SMALLEST_CPU if resource == "cpu" else _SMALLEST_MEMORY)


class QuantizeSpec(StageSpec, frozen=True):
    """``quantize``: round up on a ladder (base, step, ratio, maxStep), or by segments."""

    base: Quantity | None = None
    step: Quantity | None = None
    ratio: float = 1.0
    max_step: Quantity = Quantity(inf)
    segments: list[SegmentSpec] | None = None

    def __post_init__(self) -> None:
        check(1 <= self.ratio <= _MAX_TIMES, f"ratio of 1 to {_MAX_TIMES:g}")
        check(self.max_step > 0, "maxStep above zero")
        check(bool(self.base or self.step) != bool(self.segments), "either base or step, or segments")

    def build(self, before: Sequence[Stage]) -> Stage:  # noqa: ARG002 - allowed anywhere
        """See ``StageSpec``."""
        if self.segments:
            return Segments([(step.at, step.every) for step in self.segments], is_output=True)
        return Quantize(self.base, self.step, self.ratio, self.max_step)


class SustainSpec(StageSpec, frozen=True):
    """``sustain``: weight a need by its duration."""

    over: Duration = Duration(2.25)

    def build(self, before: Sequence[Stage]) -> Stage:  # noqa: ARG002 - allowed anywhere
        """See ``StageSpec``."""
        return Sustain(Seconds(self.over))


class SurgeSpec(StageSpec, frozen=True):
    """``surge``: respond to a need above the current size with more than that."""

    factor: float = 1.5
    window: Duration = Duration(20)

    def __post_init__(self) -> None:
        check(1 <= self.factor <= _MAX_TIMES, f"factor of 1 to {_MAX_TIMES:g}")

    def build(self, before: Sequence[Stage]) -> Stage:  # noqa: ARG002 - allowed anywhere
        """See ``StageSpec``."""
        return Surge(self.factor, Seconds(self.window))


SPECS: Final[dict[str, type[StageSpec]]] = {
    "model": ModelSpec,
    "segments": SegmentsSpec,
    "hysteresis": HysteresisSpec,
    "hold": HoldSpec,
    "percentile": PercentileSpec,
    "histogram": HistogramSpec,
    "quantize": QuantizeSpec,
    "sustain": SustainSpec,
    "surge": SurgeSpec,
}
"""All stages, by their name in a policy file."""
