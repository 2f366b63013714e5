"""The scheduler's settings: the shape of the ConfigMap in ``deploy/scheduler-deploy.yaml``.

Both forms are read: the settings themselves, and a manifest with a ConfigMap that holds them under ``config.yaml``.
A text is accepted or refused as a whole, with the path of every bad field.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePath
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from protocol.field_errors import shown
from protocol.names import SCHEDULER_NAME, TOKEN_AUDIENCE
from protocol.ranking.config import RankingConfig, RankingConfigError, parse_ranking
from protocol.runtime.followed_file import SettingsError
from protocol.units import Bytes, ComputeUnit, MilliCpu, Seconds
from protocol.yaml_text import YamlError, read_documents, read_yaml
from scheduler_plugin.ledger.accounts.waiting_pods import PERCENT
from scheduler_plugin.ledger.facts import NodePolicy, PodFacts, ResourcePolicy
from scheduler_plugin.ledger.wake_reserve import DEFAULT_RESERVE, WakeReserve
from scheduler_plugin.planner.plan import MigrationPolicy
from scheduler_plugin.settings.fields import Candidates, Cpu, CpuUnit, Mem, MemUnit, Section, Watermark
from scheduler_plugin.settings.migration import MigrationSection

CONFIG_KEY: Final = "config.yaml"

BELOW: Final = "below"
"""Our kind of error whose message begins with the rest of the path (``document`` if there is none)."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Settings of the scheduler. ``overrides`` are complete policies by the node's name.

    ``node_agents`` are the service accounts (``namespace:name``) whose tokens may speak for every VM on their node,
    ``tokenless`` are the pods that may do so without a token (None: none may).
    ``candidates`` is how many nodes filter names at most for a pod without preferences of its own (None: all);
    ``percent_of_nodes`` (1-100) is the ``percentageOfNodesToScore`` of the kube-scheduler that asks.
    ``lazy_writes_per_second`` bounds how fast decreased permits are persisted; ``wake_interval`` is the least time
    between two wake-ups through one node. ``pod_requests``: pods request what is reserved for their VMs (B.10), and
    ``limits_cpu``: they are limited to it.
    ``ranking`` is what nodes cost and how they are scored (S2.1, S2.8b).
    ``migration`` is when VMs are moved, ``migration_bandwidth`` how much memory each sends in a second at most.
    """

    scheduler_name: str
    defaults: NodePolicy
    overrides: dict[str, NodePolicy]
    node_agents: frozenset[str]
    tokenless: Tokenless | None
    audience: str
    extender_token_file: str | None
    candidates: int | None
    percent_of_nodes: int
    lazy_writes_per_second: float
    pod_requests: bool
    limits_cpu: bool
    wake_interval: Seconds
    ranking: RankingConfig
    migration: MigrationPolicy
    migration_bandwidth: Bytes

    def policy_of(self, node: str) -> NodePolicy:
        """Policy of ``node`` (S4.6, S4.8)."""
        return self.overrides.get(node, self.defaults)


def _ranking(value: object) -> RankingConfig:
    try:
        return parse_ranking(value)
    except RankingConfigError as error:
        # A kind of its own, because this message begins with the rest of the path; see ``_problem``.
        raise PydanticCustomError(BELOW, "{said}", {"said": str(error)}) from None


Ranking = Annotated[RankingConfig, BeforeValidator(_ranking)]
NodeName = Annotated[str, Field(min_length=1, max_length=253)]


class _Unit(Section):
    cpu: CpuUnit = Field(alias="vCPUs")
    mem: MemUnit


class _CpuLevel(Section):
    watermark: Watermark = Fraction(9, 10)
    system: Cpu = MilliCpu(500)


class _MemLevel(Section):
    watermark: Watermark = Fraction(9, 10)
    system: Mem = Bytes(1024**3)


class _WakeReserve(Section):
    # 0 switches it off.
    sleepers: Annotated[int, Field(ge=0, le=1000, strict=True)] = DEFAULT_RESERVE.sleepers
    share: Watermark = DEFAULT_RESERVE.share


# Whoever wants no VM to wake switches sleep off.
_AtOnce = Annotated[int, Field(ge=1, le=10_000, strict=True)]


class _Node(Section):
    compute_unit: _Unit
    cpu: _CpuLevel = _CpuLevel()
    memory: _MemLevel = _MemLevel()
    wake_reserve: _WakeReserve = _WakeReserve()
    wakes_at_once: _AtOnce | None = None

    def policy(self) -> NodePolicy:
        return NodePolicy(
            ComputeUnit(self.compute_unit.cpu, self.compute_unit.mem),
            ResourcePolicy(self.cpu.watermark, self.cpu.system),
            ResourcePolicy(self.memory.watermark, self.memory.system),
            WakeReserve(self.wake_reserve.sleepers, self.wake_reserve.share),
            self.wakes_at_once,
        )


class _PartUnit(Section):
    cpu: CpuUnit | None = Field(default=None, alias="vCPUs")
    mem: MemUnit | None = None


class _PartCpu(Section):
    watermark: Watermark | None = None
    system: Cpu | None = None


class _PartMem(Section):
    watermark: Watermark | None = None
    system: Mem | None = None


class _PartReserve(Section):
    sleepers: Annotated[int, Field(ge=0, le=1000, strict=True)] | None = None
    share: Watermark | None = None


class _Override(Section):
    nodes: Annotated[list[NodeName], Field(min_length=1)]
    compute_unit: _PartUnit = _PartUnit()
    cpu: _PartCpu = _PartCpu()
    memory: _PartMem = _PartMem()
    wake_reserve: _PartReserve = _PartReserve()
    wakes_at_once: _AtOnce | None = None

    def over(self, node: _Node) -> _Node:
        """``node`` with the given fields replaced."""
        # All parts are validated already: only the combination is new.
        return _Node.model_construct(
            compute_unit=_over(node.compute_unit, self.compute_unit),
            cpu=_over(node.cpu, self.cpu),
            memory=_over(node.memory, self.memory),
            wake_reserve=_over(node.wake_reserve, self.wake_reserve),
            wakes_at_once=self.wakes_at_once or node.wakes_at_once,
        )


M = TypeVar("M", bound=BaseModel)


def _over(base: M, part: BaseModel) -> M:
    # What an override leaves out comes from ``nodeDefaults``; null counts as left out.
    overrides = {name: getattr(part, name) for name in part.model_fields_set if getattr(part, name) is not None}
    return base.model_copy(update=overrides)


class Tokenless(Section):
    """The pods whose agents are accepted without a token, as the original autoscaler's have none (B.11): those of
    ``namespaces`` that have all of ``labels``.
    """

    namespaces: Annotated[frozenset[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    labels: Annotated[dict[str, str], Field(min_length=1)]

    def admits(self, pod: PodFacts) -> bool:
        """Return True if ``pod`` is one of them."""
        return pod.name.namespace in self.namespaces and self.labels.items() <= pod.traits.labels.items()


class _Agents(Section):
    node_agents: list[Annotated[str, Field(pattern=r"^[a-z0-9.-]+:[a-z0-9.-]+$")]] = Field(default_factory=list)
    audience: Annotated[str, Field(min_length=1)] = TOKEN_AUDIENCE
    without_tokens: Tokenless | None = None


class _Extender(Section):
    token_file: Annotated[str, Field(min_length=1)] | None = None
    # Only the best node: every further name costs kube-scheduler time.
    candidates: Candidates = 1
    percentage_of_nodes_to_score: Annotated[int, Field(ge=1, le=100, strict=True)] = PERCENT


class _Permits(Section):
    lazy_writes_per_second: Annotated[float, Field(gt=0, le=10_000)] = 50.0
    as_pod_requests: bool = False
    as_cpu_limits: bool = False

    @model_validator(mode="after")
    def _limits_follow_requests(self) -> Self:
        if self.as_cpu_limits and not self.as_pod_requests:
            raise ValueError("asCpuLimits: expected asPodRequests with it, because limits are written with requests")
        return self


class _Waiting(Section):
    wake_interval_seconds: Annotated[float, Field(gt=0, le=600)] = 1.0


class _Settings(Section):
    scheduler_name: Annotated[str, Field(min_length=1)] = SCHEDULER_NAME
    node_defaults: _Node
    node_overrides: list[_Override] = Field(default_factory=list)
    agents: _Agents = _Agents()
    extender: _Extender = _Extender()
    permits: _Permits = _Permits()
    waiting: _Waiting = _Waiting()
    ranking: Ranking = RankingConfig()
    migration: MigrationSection = MigrationSection()

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """A section without content (null in YAML) counts as left out."""
        return {key: part for key, part in value.items() if part is not None} if isinstance(value, dict) else value


_HERE: Final = PurePath()


def parse_settings(text: str, folder: PurePath = _HERE) -> SchedulerSettings:
    """Reads settings from YAML; names of files in them are relative to ``folder``. Raises ``SettingsError`` with every
    problem.
    """
    try:
        document = _unwrapped(read_documents(text))
    except YamlError as error:
        raise SettingsError(str(error)) from None
    if not isinstance(document, dict):
        raise SettingsError(f"expected settings with nodeDefaults, got {shown(document)}")
    try:
        return _settings(_Settings.model_validate(document), folder)
    except ValidationError as error:
        # Every bad field at once, so that an operator can correct the file in one go.
        raise SettingsError(
            *(_problem(fault["loc"], fault["msg"], fault["type"]) for fault in error.errors())
        ) from None


def _unwrapped(documents: list[object]) -> object:
    """The settings in a file: its only document, or what its ConfigMap holds."""
    # A manifest may have several objects, of which one is the ConfigMap.
    for document in documents:
        data = document.get("data") if isinstance(document, dict) and document.get("kind") == "ConfigMap" else None
        inner = data.get(CONFIG_KEY) if isinstance(data, dict) else None
        if isinstance(inner, str):
            # A ConfigMap holds the settings as text, which is YAML itself.
            return read_yaml(inner)
    return documents[0] if len(documents) == 1 else None


_SAID: Final = {
    "missing": "expected a value, the field is missing",
    "extra_forbidden": "unknown setting",
    "model_type": "expected a mapping",
    "too_short": "expected at least one",
}
"""pydantic's kinds of errors whose own words would puzzle a reader of a YAML file."""


def _problem(location: tuple[int | str, ...], message: str, kind: str) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    # The message continues the path; ``document`` stands for no further path.
    if kind == BELOW:
        return f"{path}.{message}".lstrip(".").replace(".document: ", ": ", 1)
    text = _SAID.get(kind, message).removeprefix("Value error, ")
    return f"{path.lstrip('.') or 'settings'}: {text}"


def _settings(found: _Settings, folder: PurePath) -> SchedulerSettings:
    overridden: dict[str, _Node] = {}
    for override in found.node_overrides:
        for node in override.nodes:
            # Overrides add up: if several name the same node, the last one wins for each field.
            overridden[node] = override.over(overridden.get(node, found.node_defaults))
    return SchedulerSettings(
        scheduler_name=found.scheduler_name,
        defaults=found.node_defaults.policy(),
        overrides={name: node.policy() for name, node in overridden.items()},
        node_agents=frozenset(found.agents.node_agents),
        tokenless=found.agents.without_tokens,
        audience=found.agents.audience,
        extender_token_file=str(folder / found.extender.token_file) if found.extender.token_file else None,
        candidates=found.extender.candidates,
        percent_of_nodes=found.extender.percentage_of_nodes_to_score,
        lazy_writes_per_second=found.permits.lazy_writes_per_second,
        pod_requests=found.permits.as_pod_requests,
        limits_cpu=found.permits.as_cpu_limits,
        wake_interval=Seconds(found.waiting.wake_interval_seconds),
        ranking=found.ranking,
        migration=found.migration.policy(),
        migration_bandwidth=found.migration.max_bandwidth,
    )
