"""The scheduler's settings, as in the ConfigMap in ``deploy/scheduler-deploy.yaml``.

The file is either the settings themselves or a manifest with a ConfigMap that has them under ``config.yaml``. It is
accepted or refused as a whole, with the path of every bad field.
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
"""Our own error type, whose message starts with the rest of the path (``document`` if there is none)."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Settings of the scheduler."""

    scheduler_name: str
    defaults: NodePolicy
    overrides: dict[str, NodePolicy]  # complete policies by node name
    node_agents: frozenset[str]  # service accounts (namespace:name) whose tokens are valid for all VMs on their node
    tokenless: Tokenless | None  # pods with the same permission without a token
    audience: str
    extender_token_file: str | None
    candidates: int | None  # maximum number of nodes that filter returns for a pod without preferences; None: all
    percent_of_nodes: int  # kube-scheduler's ``percentageOfNodesToScore``, 1-100
    lazy_writes_per_second: float  # limit of writes of decreased permits
    pod_requests: bool  # pod requests follow reservations (B.10)
    limits_cpu: bool  # CPU limits do too
    wake_interval: Seconds  # minimum time between two wake-ups through one node
    ranking: RankingConfig
    migration: MigrationPolicy
    migration_bandwidth: Bytes  # per second and migration

    def policy_of(self, node: str) -> NodePolicy:
        """Policy of ``node`` (S4.6, S4.8)."""
        return self.overrides.get(node, self.defaults)


def _ranking(value: object) -> RankingConfig:
    try:
        return parse_ranking(value)
    except RankingConfigError as error:
        # The message starts with the rest of the path; see ``_problem``.
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
    # 0 disables it.
    sleepers: Annotated[int, Field(ge=0, le=1000, strict=True)] = DEFAULT_RESERVE.sleepers
    share: Watermark = DEFAULT_RESERVE.share


# Not 0: to wake no VM, disable sleep.
_AtOnce = Annotated[int, Field(ge=1, le=10_000, strict=True)]


class _NodeSection(Section):
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


def _without_nulls(section: object) -> object:
    """``section`` without empty fields (null in YAML), which count as missing."""
    return {key: part for key, part in section.items() if part is not None} if isinstance(section, dict) else section


_IN_PART: Final = BeforeValidator(_without_nulls)


class _Override(Section):
    # Defaults of missing fields do not matter: only those in the file replace others.
    nodes: Annotated[list[NodeName], Field(min_length=1)]
    compute_unit: _PartUnit = _PartUnit()
    cpu: Annotated[_CpuLevel, _IN_PART] = _CpuLevel()
    memory: Annotated[_MemLevel, _IN_PART] = _MemLevel()
    wake_reserve: Annotated[_WakeReserve, _IN_PART] = _WakeReserve()
    wakes_at_once: _AtOnce | None = None

    def over(self, node: _NodeSection) -> _NodeSection:
        """``node`` with the given fields replaced."""
        # The parts are validated already.
        return _NodeSection.model_construct(
            compute_unit=_over(node.compute_unit, self.compute_unit),
            cpu=_over(node.cpu, self.cpu),
            memory=_over(node.memory, self.memory),
            wake_reserve=_over(node.wake_reserve, self.wake_reserve),
            wakes_at_once=self.wakes_at_once or node.wakes_at_once,
        )


M = TypeVar("M", bound=BaseModel)


def _over(base: M, part: BaseModel) -> M:
    # Missing or null fields come from ``nodeDefaults``.
    overrides = {name: getattr(part, name) for name in part.model_fields_set if getattr(part, name) is not None}
    return base.model_copy(update=overrides)


class Tokenless(Section):
    """Pods whose agents need no token, as in the original autoscaler (B.11): pods of ``namespaces`` with all of
    ``labels``.
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
    # Each further node costs kube-scheduler time.
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


class _WaitingSection(Section):
    wake_interval_seconds: Annotated[float, Field(gt=0, le=600)] = 1.0


class _Settings(Section):
    scheduler_name: Annotated[str, Field(min_length=1)] = SCHEDULER_NAME
    node_defaults: _NodeSection
    node_overrides: list[_Override] = Field(default_factory=list)
    agents: _Agents = _Agents()
    extender: _Extender = _Extender()
    permits: _Permits = _Permits()
    waiting: _WaitingSection = _WaitingSection()
    ranking: Ranking = RankingConfig()
    migration: MigrationSection = MigrationSection()

    @model_validator(mode="before")
    @classmethod
    def _ignore_empty(cls, value: Any) -> Any:
        return _without_nulls(value)


_HERE: Final = PurePath()


def parse_settings(text: str, folder: PurePath = _HERE) -> SchedulerSettings:
    """Parse settings from YAML; file names in them are relative to ``folder``. Raises ``SettingsError`` with every
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
        # All bad fields at once.
        raise SettingsError(
            *(_problem(fault["loc"], fault["msg"], fault["type"]) for fault in error.errors())
        ) from None


def _unwrapped(documents: list[object]) -> object:
    """The settings in a file: its only document, or the content of its ConfigMap."""
    # A manifest may have other objects too.
    for document in documents:
        data = document.get("data") if isinstance(document, dict) and document.get("kind") == "ConfigMap" else None
        inner = data.get(CONFIG_KEY) if isinstance(data, dict) else None
        if isinstance(inner, str):
            # The ConfigMap's value is YAML text.
            return read_yaml(inner)
    return documents[0] if len(documents) == 1 else None


_MESSAGES: Final = {
    "missing": "expected a value, the field is missing",
    "extra_forbidden": "unknown setting",
    "model_type": "expected a mapping",
    "too_short": "expected at least one",
}
"""pydantic error types whose messages do not suit a YAML file."""


def _problem(location: tuple[int | str, ...], message: str, kind: str) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    # The message continues the path; ``document`` means the root.
    if kind == BELOW:
        return f"{path}.{message}".lstrip(".").replace(".document: ", ": ", 1)
    text = _MESSAGES.get(kind, message).removeprefix("Value error, ")
    return f"{path.lstrip('.') or 'settings'}: {text}"


def _settings(settings: _Settings, folder: PurePath) -> SchedulerSettings:
    overridden: dict[str, _NodeSection] = {}
    for override in settings.node_overrides:
        for node in override.nodes:
            # If several overrides name a node, the last one wins for each field.
            overridden[node] = override.over(overridden.get(node, settings.node_defaults))
    return SchedulerSettings(
        scheduler_name=settings.scheduler_name,
        defaults=settings.node_defaults.policy(),
        overrides={name: node.policy() for name, node in overridden.items()},
        node_agents=frozenset(settings.agents.node_agents),
        tokenless=settings.agents.without_tokens,
        audience=settings.agents.audience,
        extender_token_file=str(folder / settings.extender.token_file) if settings.extender.token_file else None,
        candidates=settings.extender.candidates,
        percent_of_nodes=settings.extender.percentage_of_nodes_to_score,
        lazy_writes_per_second=settings.permits.lazy_writes_per_second,
        pod_requests=settings.permits.as_pod_requests,
        limits_cpu=settings.permits.as_cpu_limits,
        wake_interval=Seconds(settings.waiting.wake_interval_seconds),
        ranking=settings.ranking,
        migration=settings.migration.policy(),
        migration_bandwidth=settings.migration.max_bandwidth,
    )
