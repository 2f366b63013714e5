"""Agents of VMs as the scheduler meets them: real bound tokens, the real wire, and guests that obey at once."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.units import Bytes, MilliCpu, Resources
from tests.kubernetes.scheduling.books import VMS, Held, Obj, use_of
from tests.kubernetes.scheduling.programs import AGENTS
from tests.kubernetes.scheduling.stage import Stage

SLOT: Final = Bytes.parse("1Gi")
_PAUSE: Final = 0.05


@dataclass(slots=True)
class Agent:
    """An agent of one VM, whose pod has the same name. ``held`` is the maximum that it may give its VM."""

    stage: Stage
    pod: Obj
    token: str
    held: Resources
    kept: list[Held] = field(default_factory=list)
    answers: int = 0
    unanswered: int = 0
    is_heard: bool = False
    _since: int = 0
    _sequence: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def of(cls, stage: Stage, pod: Obj) -> Agent:
        """The agent of a VM whose pod has a node."""
        return cls(stage, pod, stage.token(pod), use_of(stage.get(VMS, pod["metadata"]["name"])))

    @property
    def vm(self) -> str:
        """The VM's name."""
        return str(self.pod["metadata"]["name"])

    def ask(self, cpu: object, slots: int, token: str | None = None) -> tuple[int, Any]:
        """One request; status and content of the answer. Raises ``OSError`` if there is none."""
        meta = self.pod["metadata"]
        body = {
            "protoVersion": 4,
            "pod": {"name": meta["name"], "namespace": meta["namespace"]},
            "resources": {"vCPUs": cpu, "mem": slots},
            "lastPermit": None,
            "metrics": {"loadAvg1M": 0.5, "loadAvg5M": 0.4, "memoryUsageBytes": 1.0},
            "sequence": next(self._sequence),
        }
        return self.stage.programs.ask("POST", AGENTS, "/", body, self.token if token is None else token)

    def go_to(self, wanted: Resources) -> bool:
        """Shrinks before reporting it, and asks before growing. Returns True if there was a response."""
        if not self.held.within(wanted):
            self._resize(wanted.at_most(self.held))
            self._lower(wanted.at_most(self.held))
        try:
            status, answer = self.ask(wanted.cpu.quantity(), _slots(wanted))
        except OSError:
            self.unanswered += 1
            return False
        self.is_heard = status == 200
        if not self.is_heard:
            assert status in {404, 503}, (status, answer)
            return False
        self._raise(Resources(MilliCpu.parse(answer["permit"]["vCPUs"]), SLOT * int(answer["permit"]["mem"])))
        self._resize(wanted.at_most(self.held))
        self.answers += 1
        return True

    def begin_anew(self) -> None:
        """The VM's pod is deleted and another takes its place: its agent holds nothing but what the VM has."""
        self.is_heard = False
        self.close()
        self.stage.delete_pods(self.vm)
        vm = self.stage.get(VMS, self.vm)
        self.pod = self.stage.vm_pod(vm, self.vm)
        self.token, self.held = self.stage.token(self.pod), use_of(vm)

    def _revision(self) -> int:
        return int(self.stage.get(VMS, self.vm)["metadata"]["resourceVersion"])

    def _lower(self, to: Resources) -> None:
        """From the moment at which less is sent no more than that is held."""
        self.close()
        self.held = to

    def _raise(self, to: Resources) -> None:
        self.close()
        self.held, self._since = to, self._revision()

    def close(self) -> None:
        """Notes until which revision what is held was held; nothing was answered before the first time."""
        if self._since:
            self.kept.append(Held(self.vm, self.held, self._since, self._revision()))
        self._since = 0

    def _resize(self, to: Resources) -> None:
        guest = {"cpus": {"use": to.cpu.quantity()}, "memorySlots": {"use": _slots(to)}}
        self.stage.patch(self.stage.path(VMS, self.vm), {"spec": {"guest": guest}})
        self.stage.guest_has(self.vm, to.cpu.quantity(), _slots(to))


def _slots(size: Resources) -> int:
    return size.mem.units_down(SLOT)


class Crowd:
    """Agents that keep sending requests, each in its own thread, and can be paused."""

    def __init__(self, agents: list[Agent], most: Resources) -> None:
        self._agents = agents
        self._most = most
        self._go, self._over = threading.Event(), threading.Event()
        self._idle = threading.Semaphore(0)
        self.failures: list[BaseException] = []

    @contextmanager
    def asking(self) -> Iterator[None]:
        """They ask while this is entered."""
        threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in self._agents]
        self._go.set()
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._go.set()
            for thread in threads:
                thread.join(20.0)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Pause all agents within the block, after their present requests."""
        self._go.clear()
        for _ in self._agents:
            assert self._idle.acquire(timeout=20.0), self.failures
        yield
        self._go.set()

    def _run(self, agent: Agent) -> None:
        chance = random.Random(agent.vm)
        try:
            while not self._over.is_set():
                if not self._go.is_set():
                    self._idle.release()
                    self._go.wait()
                    continue
                self._over.wait(_PAUSE * chance.random())
                cpu = MilliCpu(500) * chance.randint(1, self._most.cpu.units_down(MilliCpu(500)))
                agent.go_to(Resources(cpu, SLOT * chance.randint(1, _slots(self._most))))
            agent.close()
        except BaseException as error:
            self.failures.append(error)
            self._idle.release()
            raise
