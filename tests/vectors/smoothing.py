"""The family smoothing: what the stages of ``protocol.smoothing`` answer, and what they decline (S0)."""

from __future__ import annotations

from typing import Any, Final

from protocol.smoothing.curves import Model, Segments
from protocol.smoothing.hold import Hold
from protocol.smoothing.hysteresis import Hysteresis
from protocol.smoothing.percentile import Percentile, Thresholds, percentile_index
from protocol.smoothing.quantize import Quantize
from protocol.smoothing.stage import Sample
from protocol.units import Instant, Seconds
from tests.vectors.case import Case
from tests.vectors.registry import Family


def segments(case: Case) -> Segments:
    return Segments([(step["at"], step["every"]) for step in case.input["segments"]])


def segment_round(case: Case) -> float:
    return segments(case).at(case.input["input"])


def segment_linear(case: Case) -> dict[str, float]:
    given, milli = case.input, "base_m" in case.input
    rounded = segments(case).at(given["input"])
    model = Model(given["base_m" if milli else "base"], given["slope_m" if milli else "slope"])
    return {"rounded": rounded, "milli" if milli else "value": model.at(rounded)}


def linear(case: Case) -> float:
    given = case.input
    return Model(given["base"], given["slope"], given.get("per", 1)).at(given["input"] or 0.0)


def hysteresis_offset(case: Case) -> dict[str, Any]:
    given = case.input
    model, current = Model(given["base_m"], given["slope_m"]), given["current_m"]
    stage, target = Hysteresis.by_inputs(model.at, given["offset"]), model.at(given["input"])
    new = stage.step(Instant(0.0), target, Sample(given["input"], current))
    return {
        "target": target,
        "threshold": model.at(given["input"] + given["offset"]),
        "action": direction(current, new),
        "new": new,
    }


def direction(current: float | None, new: float) -> str:
    if current is None:
        return "set"
    return "hold" if new == current else "up" if new > current else "down"


def delay_scale_down_window(case: Case) -> list[Any]:
    given, now = case.input, case.input["now"]
    hold = Hold(Seconds(given["delay_s"]), pause=Seconds(given["delay_s"]))
    fell = None if given["last_scale_down"] is None else -given["last_scale_down"]
    start = {"entries": [], "seen_for": -given["window_start"], "fell": fell, "last": given["current"]}
    hold.restore(start, Instant(0.0))
    new = given["current"]
    for at, value in [*given["observations"], (now, given["observations"][-1][1])]:
        new = hold.step(Instant(at), value, Sample(value, given["current"]))
    return [direction(given["current"], new), new]


def percentile_smoothing(case: Case) -> list[Any]:
    given, current = case.input, case.input["current"]
    stage = Percentile(Seconds(300.0), Thresholds(given["target"], given["lowThreshold"], given["highThreshold"]))
    new = 0.0
    for at, value in enumerate(given["observations"]):
        new = stage.step(Instant(float(at)), value, Sample(value, current))
    if len(given["observations"]) < given["min_observations"]:
        return ["insufficient", new]
    return [direction(current, new), new]


def quantize_up(case: Case) -> float:
    given = case.input
    ladder = Quantize(given.get("base"), given.get("step"), given.get("ratio", 1.0), given.get("maxstep", float("inf")))
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
        "seg-nonmono-11": "a coarse segment ends at the start of the next: more input never means less (S0.2)",
        "hysteresis_offset_first_code": "the seed's text holds on equality; its first code did not (S0.3)",
        "percentile_defaults": "the seed's .80/.60/.95 are the defaults, each by itself (S0.5)",
    },
)
