"""The family smoothing: what the stages of ``protocol.smoothing`` answer, and what they decline (S0).

A key that ends in ``_m`` is in thousandths. Curves are written as in a policy: ``segments`` round the input, then
``base``, ``slope``, ``per`` and ``max`` make a value of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf
from typing import Any, Final

from protocol.smoothing.curves import INPUT_SLACK, CurveModel, Segments
from protocol.smoothing.hold import Hold
from protocol.smoothing.hysteresis import Hysteresis
from protocol.smoothing.percentile import Percentile, percentile_index
from protocol.smoothing.quantize import Quantize
from protocol.smoothing.stage import Sample
from protocol.units import Instant, Seconds
from tests.vectors.case import Case
from tests.vectors.registry import Declined, Family

OLD_CAP: Final = "a coarse segment ends at the start of the next: more input never means less (S0.2)"


def _segments(case: Case) -> Segments:
    """The segments of a case. Declines an upstream case whose input a coarse segment would lift over the next one."""
    steps = [(step["at"], step["every"]) for step in case.input.get("segments", ())]
    given = case.input["input"] or 0.0
    if case.semantics == "upstream" and _passes_the_next(sorted(steps), given):
        raise Declined(OLD_CAP)
    return Segments(steps)


def _passes_the_next(steps: list[tuple[float, float]], given: float) -> bool:
    below = [number for number, (at, _) in enumerate(steps) if at <= given]
    if not below or below[-1] + 1 == len(steps):
        return False
    every, following = steps[below[-1]][1], steps[below[-1] + 1][0]
    return ceil(given / every - INPUT_SLACK) * every > following


def _model(given: Mapping[str, Any]) -> CurveModel:
    def amount(name: str, default: float) -> float:
        found = given.get(f"{name}_m") if f"{name}_m" in given else given.get(name)
        return default if found is None else float(found)

    return CurveModel(amount("base", 0.0), amount("slope", 1.0), given.get("per", 1), amount("max", inf))


def segment_round(case: Case) -> float:
    return _segments(case).at(case.input["input"])


def segment_linear(case: Case) -> dict[str, float]:
    rounded = _segments(case).at(case.input["input"])
    name = "milli" if "base_m" in case.input or "slope_m" in case.input else "value"
    return {"rounded": rounded, name: _model(case.input).at(rounded)}


def linear(case: Case) -> float:
    return _model(case.input).at(_segments(case).at(case.input["input"] or 0.0))


def hysteresis_offset(case: Case) -> dict[str, Any]:
    given, segments, model = case.input, _segments(case), _model(case.input)
    current = given["current_m"] if "current_m" in given else given["current"]
    need = given["input"] or 0.0

    def curve(value: float) -> float:
        return model.at(segments.at(value))

    stage, target = Hysteresis.by_inputs(curve, given["offset"]), curve(need)
    new = stage.step(Instant(0.0), target, Sample(need, current))
    return {"target": target, "threshold": curve(need + given["offset"]), "action": direction(current, new), "new": new}


def direction(current: float | None, new: float) -> str:
    if current is None:
        return "set"
    return "hold" if new == current else "up" if new > current else "down"


def delay_scale_down_window(case: Case) -> list[Any]:
    """Every observation is a step of the stage. The window begins with a need of nothing, which proves nothing."""
    given, current, last = case.input, case.input["current"], case.input.get("last_scale_down")
    now, start, delay = given["now"], given["window_start"], Seconds(given["delay_s"])
    observed = {at: need for at, need in given["observations"] if at <= now}
    if not observed:  # nothing is known, so nothing moves
        return ["hold", current]
    moments = {start: 0.0, **observed}
    latest = moments[max(moments)]
    if last is not None and last > start:
        moments.setdefault(last, max((at, need) for at, need in moments.items() if at <= last)[1])
    hold = Hold(delay, pause=delay)
    for at in sorted(moments):
        had = current if last is None or at >= last or current is None else current + 1
        hold.step(Instant(float(at)), moments[at], Sample(moments[at], had))
    new = hold.step(Instant(float(now)), latest, Sample(latest, current))
    return [direction(current, new), new]


def percentile_smoothing(case: Case) -> list[Any]:
    given, current, observations = case.input, case.input["current"], list(case.input["observations"])
    least = given.get("min_observations", 3)
    names = {"target": "target", "low": "lowThreshold", "high": "highThreshold"}
    thresholds = {name: given[key] for name, key in names.items() if key in given}
    stage, new = Percentile(Seconds(max(300.0, len(observations))), enough=least, **thresholds), current
    for at, value in enumerate(observations):
        new = stage.step(Instant(float(at)), value, Sample(value, current))
    if not observations or (len(observations) < least and current is not None):
        return ["insufficient", new]
    return [direction(current, new), new]


def quantize_up(case: Case) -> float:
    given = case.input
    if "segments" in given:
        return Segments([(step["at"], step["every"]) for step in given["segments"]], is_output=True).at(given["value"])
    base, step, most = given.get("base"), given.get("step"), given.get("maxstep", inf)
    unit = 1.0 if all(each is None or float(each).is_integer() for each in (base, step, given["value"])) else None
    ladder = Quantize(base, step, given.get("ratio", 1.0), most, unit=unit)
    if (
        case.semantics == "upstream"
        and given.get("base")
        and given.get("step") is None
        and given["value"] > given["base"]
    ):
        raise Declined("a base alone is also the step: that is how the seed document writes its ladder (S0.6)")
    return ladder.at(given["value"])


FAMILY: Final = Family(
    "smoothing",
    groups={
        "segment_round": segment_round,
        "segment_linear": segment_linear,
        "linear": linear,
        "hysteresis_offset": hysteresis_offset,
        "delay_scale_down_window": delay_scale_down_window,
        "percentile_index": lambda case: percentile_index(case.input["n"], case.input["p"]),
        "percentile_smoothing": percentile_smoothing,
        "quantize_up": quantize_up,
        "quantize_up_seed": quantize_up,
    },
    declined={
        "hysteresis_offset_first_code": "the seed's text holds on equality; its first code did not (S0.3)",
        "percentile_defaults": "the seed's .80/.60/.95 are the defaults, each by itself (S0.5)",
    },
)
