"""The oracle's view of VMs and agents: API objects, and the responses that were really sent.

Rules that hold here:

- An agent holds the permit of the newest answer that it waited for. It gives up what it does not ask for when it sends.
- What it holds it may use at any time, without asking, by a patch. That of ours names the version of the VM that it has
  read; that of an original agent, which numbers nothing, lands on any.
- An original agent patches nothing before its first answer: it asks as soon as it starts.
  It hears within ``NEWS`` that autoscaling is off, and patches no more then.
- Ours never patches above what that version records as permitted, unless it was answered after it had read that.
- An agent that is refused keeps what it holds: that it stands back is not relied on.
- A postgres in an ordinary pod has an agent of its node, one of ours. Nothing is stored for it, so that agent gives up
  what it holds unless it is answered for ``KEPT``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from protocol.guest.sleep import SLEEPING
from protocol.names import ANNOTATION_PERMIT, LABEL_ENABLED
from protocol.permits import decode_permit
from protocol.units import ZERO, Instant, Resources
from tests.scheduler_plugin.fake_cluster import PODS, VMS, FakeCluster, Obj

AWAY = Instant(float("-inf"))

KEPT: Final = 24.0
"""Seconds that the agent of a pod keeps its permit without another answer; below the scheduler's ``SETTLE``."""


@dataclass(slots=True)
class View:
    """The VM's object as its agent has read it."""

    version: int
    use: Resources
    recorded: Resources | None
    enabled: bool
    phase: str = "Running"
    wakes_with: Resources | None = None


@dataclass(slots=True)
class Patch:
    """An agent's resize on its way; it lands only on the version that it names. An original agent's names none, and
    lands until ``ends``.

    ``due`` is what of it the agent holds: it may also order what people have ordered before.
    """

    base: int | None
    target: Resources
    due: Resources
    ends: Instant


@dataclass(slots=True, eq=False)
class Agent:
    """One agent of one VM. ``uid`` is the pod of its token, ``waits`` the message whose answer it waits for.

    ``numbers``: it numbers its messages, as ours do. ``blind_until`` and ``quiet_until`` are when it reads its VM and
    speaks to the scheduler again. ``is_unknown``: its permit was gone from the object when the scheduler at work
    started, and that one has not answered it yet.
    """

    token: str
    uid: str
    numbers: bool
    sequence: int
    hold: Resources | None = None
    view: View | None = None
    answered_version: int = 0
    answered_at: Instant = AWAY
    waits: int = 0
    asked_at: Instant = AWAY
    blind_until: Instant = AWAY
    quiet_until: Instant = AWAY
    is_unknown: bool = False
    patches: list[Patch] = field(default_factory=list)

    def limit(self) -> Resources:
        """The largest size to which it would patch its VM now."""
        view = self.view
        if view is None:
            return ZERO
        hold = self.hold or ZERO
        if self.numbers and view.recorded is not None and view.version > self.answered_version:
            hold = hold.at_most(view.recorded)
        return hold.at_least(view.use)

    @property
    def may_order(self) -> Resources:
        """The size it holds, and the part of it that resizes in flight order."""
        return Resources.most((self.hold or ZERO, *(each.due for each in self.patches)))

    def floor(self) -> Resources:
        """The least that it asks for: what the VM has, or may come to have by its own patches."""
        floor = ZERO if self.view is None else self.view.use
        return Resources.most((floor, *(each.target for each in self.patches)))


@dataclass(slots=True, eq=False)
class Machine:
    """One VM. ``own`` is what of its use came about without people; ``is_tainted``: others lowered its permit, and
    nobody has restored it; ``is_excused``: a scheduler has started meanwhile, which cannot know what was answered.
    ``forged`` is the permit that a person wrote last, ``edited_at`` when a person last edited it.
    ``off_since`` is when autoscaling was last switched off. ``is_pod``: a postgres in an ordinary pod. ``slept`` is
    what its guest had when it fell asleep.
    """

    name: str
    uid: str
    pod: str
    own: Resources
    agents: list[Agent]
    is_tainted: bool = False
    is_excused: bool = False
    forged: Resources | None = None
    edited_at: Instant = AWAY
    off_since: Instant = AWAY
    is_pod: bool = False
    slept: Resources = ZERO

    @property
    def slots(self) -> int:
        """Slots of memory in a GiB, as its agent counts them."""
        return 16 if self.is_pod else 1


class Fleet:
    """All VMs, and what of them may be used."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.machines: dict[str, Machine] = {}
        self._permits: dict[str, Resources | None] = {}

    def object_of(self, machine: Machine) -> Obj:
        return self.cluster.get(PODS if machine.is_pod else VMS, "default", machine.name)

    def stored(self, machine: Machine) -> Resources | None:
        """The permit on the object; None if there is none, or none that can be read."""
        text = self.object_of(machine)["metadata"].get("annotations", {}).get(ANNOTATION_PERMIT)
        if text is None:
            return None
        if text not in self._permits:
            try:
                self._permits[text] = decode_permit(text)
            except ValueError:
                self._permits[text] = None
        return self._permits[text]

    def use(self, machine: Machine) -> Resources:
        if machine.is_pod:
            return _requested(self.object_of(machine)["spec"]["containers"][0]["resources"])
        return ZERO if self.sleeps(machine) else self.wakes_with(machine)

    def size(self, machine: Machine) -> Resources:
        """The size in a VM's spec."""
        guest = self.object_of(machine)["spec"]["guest"]
        return Resources.parse(guest["cpus"]["use"], f"{guest['memorySlots']['use']}Gi")

    def wakes_with(self, machine: Machine) -> Resources:
        """The size with which a sleeping guest resumes: its size when it fell asleep, even if the spec has changed
        since.
        """
        size = self.size(machine)
        return size.at_least(machine.slept) if self.phase(machine) in SLEEPING else size

    def phase(self, machine: Machine) -> str:
        return str(self.object_of(machine)["status"].get("phase", ""))

    def sleeps(self, machine: Machine) -> bool:
        """True if no guest runs before a permit is stored."""
        return not machine.is_pod and self.phase(machine) in SLEEPING and self.is_enabled(machine)

    def is_enabled(self, machine: Machine) -> bool:
        enabled: str | None = self.object_of(machine)["metadata"]["labels"].get(LABEL_ENABLED)
        return enabled == "true"

    def version(self, machine: Machine) -> int:
        return int(self.object_of(machine)["metadata"]["resourceVersion"])

    def view(self, machine: Machine) -> View:
        wakes_with = self.wakes_with(machine) if self.sleeps(machine) else None
        seen = self.use(machine), self.stored(machine), self.is_enabled(machine)
        return View(self.version(machine), *seen, self.phase(machine), wakes_with)

    def node(self, machine: Machine) -> str | None:
        """The node of the VM's pod."""
        pod = self.cluster.collections[PODS].objects.get(("default", machine.pod))
        return None if pod is None else pod["spec"].get("nodeName")

    def may_use(self, machine: Machine) -> Resources:
        """The maximum size that the VM may reach without another response."""
        version, parts = self.version(machine), [machine.own]
        for agent in machine.agents:
            parts.append(agent.hold or ZERO)
            parts += [patch.due for patch in agent.patches if patch.base in (None, version)]
        most = Resources.most(parts)
        if machine.is_excused:
            return most.at_most((self.stored(machine) or ZERO).at_least(self.use(machine)))
        return most

    def has(self, machine: Machine) -> Resources:
        """The size that the VM has or may reach; granting it grants nothing more."""
        if machine.name not in self.machines:
            return ZERO
        # A guest that sleeps may start by the permit on its object.
        wakes_by = self.wakes_with(machine).at_most(self.stored(machine) or ZERO) if self.sleeps(machine) else ZERO
        return Resources.most((self.may_use(machine), self.use(machine), self.reported(machine), wakes_by))

    def reported(self, machine: Machine) -> Resources:
        """The guest's size as reported by the controller."""
        status = self.object_of(machine)["status"]
        if machine.is_pod:
            return Resources.most(_requested(each["resources"]) for each in status["containerStatuses"])
        return Resources.parse(status.get("cpus") or 0, status.get("memorySize") or 0)

    def on(self, node: str) -> Iterator[Machine]:
        return (each for each in self.machines.values() if self.node(each) == node)

    def foreign(self, node: str) -> Resources:
        """Requests of other pods on the node."""
        total = ZERO
        for (namespace, _), pod in self.cluster.collections[PODS].objects.items():
            if namespace == "foreign" and pod["spec"].get("nodeName") == node:
                requests = pod["spec"]["containers"][0]["resources"]["requests"]
                total = total + Resources.parse(requests["cpu"], requests["memory"])
        return total


def _requested(resources: Obj) -> Resources:
    return Resources.parse(resources["requests"]["cpu"], resources["requests"]["memory"])
