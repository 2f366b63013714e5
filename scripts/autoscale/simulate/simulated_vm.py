"""One simulated VM: its object in the API, its guest and its agent.

The agent is the real one: ``plan`` decides, and ``advance`` takes every event but an uneventful observation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Final, Protocol

from agent.core.actions import AskScheduler, PatchVm
from agent.core.advance import advance
from agent.core.events import Answered, Patched, Started, VmSeen
from agent.core.goal import OBSERVER, goal
from agent.core.guest import GuestSample, ObservedSample, Rates
from agent.core.plan import plan
from agent.core.policy import Policy, Smoothing, Timing
from agent.core.state import OFFER_PAUSE, REGROWTH_WINDOW, GiveBack, State, begin
from agent.core.vm import Vm
from protocol.messages import AgentRequest, ObjectName, PluginResponse
from protocol.smoothing.stage import FOR_EVER
from protocol.units import Bytes, Instant, Resources, Seconds
from protocol.virtual_machine import Bounds
from scheduler_plugin.ledger.accounts.permit_state import SETTLE
from scripts.autoscale.simulate.vm_table import SLOT, UNIT

SWAPPING: Final = 0.5
"""The share of time that tasks stall on memory in a guest with less memory than its demand."""


def observe_guest(cores: float, mem: float, size: Resources) -> tuple[GuestSample, Rates]:
    """The metrics of a guest of ``size`` under a steady demand of ``cores`` (>= 0) vCPUs and ``mem`` bytes."""
    has, total = size.cpu.as_cores, size.mem.value
    sample = GuestSample(
        # The agent's own observer is a runnable task, too, which its policy subtracts again.
        runnable=ceil(cores) + OBSERVER,
        load1=cores,
        load5=cores,
        mem_total=size.mem,
        # Memory in use is the demand, capped at the guest's memory; all of the rest can be unplugged at once.
        mem_available=Bytes(max(0, total - int(mem))),
    )
    # A guest serves as much demand as it has CPU. The share that it cannot serve is the share of time that tasks
    # wait.
    waits = 1.0 - has / cores if cores > has else 0.0
    # The disk is never the limit, and the host steals no time.
    return sample, Rates(busy=min(cores, has), steal=0.0, cpu_stall=waits, mem_stall=SWAPPING if mem > total else 0.0)


NAMESPACE: Final = "fleet"
MOST_ROUNDS: Final = 8
"""An agent that still acts after this many rounds within one instant is broken."""

NEVER: Final = Instant(float("-inf"))

RESTART: Final = 1_000_000
"""The step in sequence numbers from one agent of a VM to the next."""


def agent_policy(step: Seconds) -> Policy:
    """The default policy, for an agent that observes its guest at most once per step."""
    no_limit = Seconds(float("inf"))
    return Policy(
        smoothing=Smoothing(max_gap=no_limit), timing=Timing(stale=no_limit, scrape=step, start_spread=Seconds(0.0))
    )


Need = tuple[object, Resources | None, Resources | None]


class ModelledCluster(Protocol):
    """The agent's and the VM's view of the cluster."""

    def ask(self, vm: SimulatedVm, request: AgentRequest, now: Instant) -> PluginResponse:
        """Sends a request to the scheduler."""

    def changed(self, vm: SimulatedVm, now: Instant) -> None:
        """Publishes a change of the VM's object, to its agent too."""


@dataclass(slots=True)
class Gifts:
    """Counts a VM's gifts of room to its neighbours, and those after which it asked for more within a minute."""

    count: int = 0
    regrown: int = 0
    _recent: list[Instant] = field(default_factory=list)

    def note(self, giving: GiveBack, now: Instant) -> None:
        """Count what the agent has just noted in ``giving``."""
        # The agent sets ``offers_from`` only if it grows too soon after a gift.
        if self._recent and giving.offers_from == now + OFFER_PAUSE:
            self.regrown += sum(now - at < REGROWTH_WINDOW for at in self._recent)
            self._recent.clear()
        if giving.gave_at == now and now not in self._recent:
            self.count += 1
            self._recent = [at for at in self._recent if now - at < REGROWTH_WINDOW] + [now]


@dataclass(slots=True, eq=False)
class SimulatedVm:
    """The VM number ``index``.

    ``use`` is its size, in the spec and in the guest; ``permit`` is the stored permit. ``may_shrink``: it has more than
    it needed at the last observation, so that time alone may change its size. ``most`` is its bound in compute units.
    ``moved_for_room``: it was denied when its last move began, and has not grown since.
    ``began`` is when its agent did, ``observed`` what the last observation was made from, ``aimed`` the target by which
    ``wanted`` (in compute units) and ``is_off_target`` were found. Its agent's last request, which
    followed from ``silence``, changed nothing, and until ``silent_until`` only another need of its guest can change
    that. Until ``rests_until`` nothing can while the demand stays the same, as it last did at ``rested_at``.
    """

    index: int
    bounds: Bounds
    use: Resources
    policy: Policy
    node: str = ""
    pod: str = ""
    pods: int = 0
    version: int = 1
    permit: Resources | None = None
    is_migrating: bool = False
    may_shrink: bool = True
    moved_for_room: bool = False
    gifts: Gifts = field(default_factory=Gifts)
    name: ObjectName = field(init=False)
    most: int = field(init=False)
    state: State = field(init=False)
    began: Instant = Instant(0.0)
    observed: tuple[float, float, Resources, Resources] | None = None
    need: Resources | None = None
    aimed: Resources | None = None
    wanted: int = 1
    is_off_target: bool = False
    silence: Need | None = None
    silent_until: Instant = NEVER
    rests_until: Instant = NEVER
    rested_at: Instant | None = None

    def __post_init__(self) -> None:
        self.name = ObjectName(NAMESPACE, f"vm-{self.index}")
        self.most = _units(self.bounds.max)

    def start_agent(self, pod: str, now: Instant) -> None:
        """Starts an agent in ``pod``; all that it knows of the VM is from the API."""
        self.pods += 1
        self.pod = pod
        # A new agent does not know the last one, and its sequence numbers must still be higher.
        self.state = begin(ObjectName(NAMESPACE, pod), self.policy, now, 0.0, self.pods * RESTART)
        self.began, self.observed, self.aimed, self.rested_at = now, None, None, None
        self.seen(now)

    def seen(self, now: Instant) -> None:
        """The agent sees the VM's object as it is."""
        self.silent_until = self.rests_until = NEVER
        advance(self.state, VmSeen(self._view()), now, 0.0)

    @property
    def held(self) -> Resources:
        """The permit that the agent believes it holds."""
        return self.state.scheduler.ceiling or self.use

    @property
    def is_denied(self) -> bool:
        """True if the scheduler granted less than was asked for last."""
        return self.state.scheduler.denial is not None

    @property
    def is_waiting(self) -> bool:
        """True if the agent needs an answer although its guest reports nothing new.

        True after its start, and while it migrates or is ordered to hold still.
        """
        side = self.state.scheduler
        return side.migrate or self.is_migrating or side.ceiling is None

    def observe(self, cores: float, mem: float, now: Instant) -> bool:
        """The agent observes its guest. True if it may have to act."""
        guest, use = self.state.guest, self.use
        if self.rested_at is not None:
            guest.stabilizer.repeat(self.rested_at)
            self.rested_at = None
        made_from = (cores, mem, use, guest.sampled_size or use)
        # An uneventful observation calls only the two functions inside `advance`, `goal` and `Stabilizer.observe`,
        # since it runs for every agent in every step; a test compares both forms.
        if guest.seen is None or made_from != self.observed:
            sample, over = observe_guest(cores, mem, use)
            guest.goal = goal(sample, over, use.at_most(guest.sampled_size or use), self.policy, settling=False)
            need = guest.goal.need
            self.need = None if need is None else need.at_most(self.bounds.max)
            self.observed, self.aimed = made_from, None
        else:
            sample = guest.seen.sample
        guest.seen, guest.sampled_size = ObservedSample(sample, now), use
        guest.stabilizer.observe(self.need, use, now)
        target = guest.stabilizer.target
        if self.need is None or target is None:
            return True
        # The stabilizer keeps its target while nothing changes, and most guests do not change in most steps.
        if target is not self.aimed:
            self.aimed, self.may_shrink = target, _units(self.need) < _units(use)
            self.wanted = self._bounded(target)
            self.is_off_target = not _has(use, self.wanted)
        # A plan is made only if the target differs from the size, or if a denied request may be withdrawn.
        return self.is_off_target or self.is_denied

    def act(self, cluster: ModelledCluster, now: Instant, jitter: float) -> None:
        """Carries out the agent's plans until they change nothing any more."""
        side, before_all, offers, asks = self.state.scheduler, self._situation(now), False, False
        self.silent_until = self.rests_until = NEVER
        for _ in range(MOST_ROUNDS):
            actions, before = plan(self.state, now).actions, (side.ceiling, side.compute_unit, side.migrate)
            for action in actions:
                advance(self.state, Started(action), now, jitter)
                self.gifts.note(side.give_back, now)
                if isinstance(action, AskScheduler):
                    asks, offers = True, offers or action.request.needs is not None
                    answer = cluster.ask(self, action.request, now)
                    advance(self.state, Answered(answer), now, jitter)
                elif isinstance(action, PatchVm):
                    self._patch(action, cluster, now, jitter)
            is_news = before != (side.ceiling, side.compute_unit, side.migrate)
            if not is_news and not any(isinstance(action, PatchVm) for action in actions):
                # Until then the ledger may reserve what the agent before was answered: the next request ends that.
                is_settled = now - self.began >= SETTLE + self.policy.timing.scrape
                is_bound = offers or self.is_waiting or side.give_back.shrink_to is not None
                if is_settled and asks and not is_bound and self._situation(now) == before_all:
                    # With time alone, only these change.
                    changes = (side.give_back.lean_until, side.give_back.offers_from)
                    self.silent_until = min((at for at in changes if at > now), default=FOR_EVER)
                    self.silence = self._need(now)
                return
        raise RuntimeError(f"the agent of {self.name} does not settle: {plan(self.state, now)}")

    def would_repeat(self, now: Instant) -> bool:
        """Return True if the agent would only send its last request again, which offered and changed nothing."""
        giving, stabilizer = self.state.scheduler.give_back, self.state.guest.stabilizer
        recent = stabilizer.recent_need(now)
        if now >= self.silent_until or recent is None:
            return False
        # If requests are not due in every step, another load moves the time of the next one, which may say more.
        if self.policy.timing.scrape < self.policy.timing.tick and self.silence != self._need(now):
            return False
        # A lean VM keeps what it has if its policy would give it more, until it needs more.
        least = self._bounded(recent)
        is_right = not self.is_off_target or (giving.is_lean(now) and least < self.wanted and _has(self.use, least))
        if not is_right or (least < _units(self.use) and giving.offers(now)):
            return False
        self.rests_until = min(self.silent_until, stabilizer.steady_until)
        return True

    def _need(self, now: Instant) -> Need:
        """All that a plan depends on and that comes from the guest."""
        stabilizer = self.state.guest.stabilizer
        return self.observed, stabilizer.target, stabilizer.recent_need(now)

    def _situation(self, now: Instant) -> tuple[object, ...]:
        """All other things that a plan depends on, but when the next request is due."""
        side = self.state.scheduler
        giving = side.give_back
        return (
            *(self.version, self.is_waiting, giving.is_lean(now), giving.offers(now), giving.shrink_to),
            *(self.state.ceiling, side.denial, side.has_reported_load),
        )

    def _bounded(self, need: Resources) -> int:
        """The compute units that cover ``need``, within the VM's bounds."""
        return min(max(1, _units(need)), self.most)

    def _patch(self, patch: PatchVm, cluster: ModelledCluster, now: Instant, jitter: float) -> None:
        self.use = patch.target
        cluster.changed(self, now)
        advance(self.state, Patched(self._view()), now, jitter)

    def _view(self) -> Vm:
        return Vm(
            bounds=self.bounds,
            use=self.use,
            actual=self.use,
            slot_size=SLOT,
            version=self.version,
            resizable=not self.is_migrating,
            recorded_permit=self.permit,
        )


def _has(use: Resources, units: int) -> bool:
    return units * UNIT.cpu.value == use.cpu.value and units * UNIT.mem.value == use.mem.value


def _units(amounts: Resources) -> int:
    """``Resources.units_up`` of the compute unit in plain integers, because it runs for every observation."""
    # Floor division of the negative rounds up.
    return max(-(-amounts.cpu.value // UNIT.cpu.value), -(-amounts.mem.value // UNIT.mem.value))
