"""Policies as lists of stages in a file (S0.7): parsing, starting, and running them.

An invalid policy is rejected as a whole, before it has any effect. A policy for memory never delays growth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Literal, TypeGuard

import msgspec

from protocol.smoothing.spec import READERS, SPECS, HistogramSpec, StageSpec
from protocol.smoothing.stage import LARGEST, Sample, Stage, StageExplanation
from protocol.units import Instant

Resource = Literal["cpu", "memory"]
"""A policy's resource: ``cpu`` in vCPUs or ``memory`` in bytes."""

MAX_STAGES: Final = 32


class SmoothingPolicyError(ValueError):
    """An invalid policy; the message begins with the path of the value."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'policy'}: {problem}")
        self.path = path


class Pipeline:
    """A running policy for one resource of one VM."""

    __slots__ = ("_at_once", "_last", "_now", "_stages", "_values")

    def __init__(self, stages: Sequence[Stage], at_once: bool) -> None:
        self._stages = tuple(stages)
        self._values = [0.0] * len(stages)
        self._at_once = at_once
        self._last: Sample | None = None
        self._now = Instant(-inf)

    def target(self, now: Instant, sample: Sample) -> float:
        """The target of the resource, in vCPUs or bytes. A ``now`` before the last one counts as the last one."""
        # Backwards, a weighted mean would run away from its values.
        self._now = now = max(now, self._now)
        value, values = min(LARGEST, sample.value), self._values
        for index, stage in enumerate(self._stages):
            values[index] = value = min(LARGEST, stage.step(now, value, sample))
        self._last = sample
        # For memory, a need is met immediately, regardless of the stages.
        return max(value, sample.value) if self._at_once else value

    def explain(self) -> tuple[StageExplanation, ...]:
        """The effect of each stage on the last sample; empty before the first."""
        if self._last is None:
            return ()
        # The input of each stage: the sample, then the outputs of the previous stages.
        before = [self._last.value, *self._values]
        return tuple(
            StageExplanation(stage.name, before[index], self._values[index], stage.explain())
            for index, stage in enumerate(self._stages)
        )


@dataclass(frozen=True, slots=True)
class SmoothingPolicy:
    """A validated list of stages. ``start`` one pipeline per VM."""

    resource: Resource
    stages: tuple[tuple[str, StageSpec], ...]

    def start(self) -> Pipeline:
        """A pipeline without history."""
        return Pipeline(_build("", self.stages), at_once=self.resource == "memory")


def parse_policy(document: object, resource: Resource = "cpu", path: str = "") -> SmoothingPolicy:
    """Parse a policy: a list of stages, each a mapping of its name to its fields, or a mapping with ``stages``.

    In a mapping, ``resource: cpu`` or ``memory`` overrides the argument. ``path`` is the document's location in a
    larger one. Raises ``SmoothingPolicyError``.

    >>> parse_policy([{"hold": {"window": "5m"}}]).resource
    'cpu'
    """
    if isinstance(document, Mapping):
        for key in document:
            if key not in ("stages", "resource"):
                raise SmoothingPolicyError(_join(path, str(key)), 'unknown field; expected "stages" and "resource"')
        resource = _resource(document.get("resource", resource), _join(path, "resource"))
        document, path = document.get("stages"), _join(path, "stages")
    if not _is_list(document) or not 0 < len(document) <= MAX_STAGES:
        raise SmoothingPolicyError(path, f"expected a list of 1 to {MAX_STAGES} stages")
    specs = tuple(_parse_stage(raw, f"{path}[{index}]") for index, raw in enumerate(document))
    specs = tuple((name, spec.of(resource) if isinstance(spec, HistogramSpec) else spec) for name, spec in specs)
    # Reject stages that could delay growth of memory: processes without memory are killed, not just slow.
    for index, stage in enumerate(_build(path, specs)):
        if resource == "memory" and stage.delays_growth:
            raise SmoothingPolicyError(
                f"{path}[{index}].{stage.name}", "memory must grow immediately, and this stage can delay it"
            )
    return SmoothingPolicy(resource, specs)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _is_list(document: object) -> TypeGuard[Sequence[object]]:
    return isinstance(document, Sequence) and not isinstance(document, (str, bytes))


def _resource(raw: object, path: str) -> Resource:
    if raw == "cpu":
        return "cpu"
    if raw == "memory":
        return "memory"
    raise SmoothingPolicyError(path, f'expected "cpu" or "memory", got {raw!r}')


def _parse_stage(raw: object, path: str) -> tuple[str, StageSpec]:
    if not isinstance(raw, Mapping) or len(raw) != 1:
        raise SmoothingPolicyError(path, "expected a mapping of one stage's name to its fields")
    ((name, fields),) = raw.items()
    spec = SPECS.get(name)
    if spec is None:
        raise SmoothingPolicyError(path, f"unknown stage {name!r}; expected one of {', '.join(SPECS)}")
    # Only segments may be written as a bare list.
    if name == "segments" and _is_list(fields):
        fields = {"steps": fields}
    try:
        return name, msgspec.convert(
            {} if fields is None else fields, spec, dec_hook=lambda kind, raw: READERS[kind](raw)
        )
    except msgspec.ValidationError as error:
        # msgspec appends the path within the stage.
        problem, _, place = str(error).partition(" - at `$")
        raise SmoothingPolicyError(f"{path}.{name}{place.rstrip('`')}", problem) from None


def _build(path: str, specs: Sequence[tuple[str, StageSpec]]) -> list[Stage]:
    stages: list[Stage] = []
    for index, (name, spec) in enumerate(specs):
        try:
            # Some stages depend on those before them.
            stages.append(spec.build(stages))
        except ValueError as error:
            raise SmoothingPolicyError(f"{path}[{index}].{name}", str(error)) from None
    return stages
