"""Queues of the ledger's orders: nodes to touch, pods to read, permits and requests to write, migrations to create and
to read.

Losing them in a restart only delays.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from protocol.messages import ObjectName
from scheduler_plugin.ledger import outcomes
from scheduler_plugin.ledger.facts import PodFacts

K = TypeVar("K")
V = TypeVar("V")


class OrderQueue(Generic[K, V]):
    """Orders of one kind by key, oldest first."""

    def __init__(self) -> None:
        self._orders: dict[K, V] = {}
        self._any = asyncio.Event()

    def __len__(self) -> int:
        return len(self._orders)

    def put(self, key: K, order: V) -> None:
        """Add an order, or replace the one with the same key in place."""
        # A dict keeps the position of an overwritten key.
        self._orders[key] = order
        self._any.set()

    async def take(self) -> V:
        """Wait for an order and remove the oldest."""
        while not self._orders:
            # All functions that remove orders may leave it set, hence the loop.
            self._any.clear()
            await self._any.wait()
        return self._orders.pop(next(iter(self._orders)))

    async def take_all(self) -> list[V]:
        """Wait for an order and remove all, oldest first."""
        orders = [await self.take(), *self._orders.values()]
        self._orders.clear()
        return orders


class FairQueue(Generic[K, V]):
    """At most ``most`` orders by namespace and key. Namespaces take turns, so none delays or displaces the others."""

    def __init__(self, most: int = sys.maxsize) -> None:
        self._most = most
        self._orders: dict[str, dict[K, V]] = {}
        self._count = 0
        self._any = asyncio.Event()

    def __len__(self) -> int:
        return self._count

    def put(self, namespace: str, key: K, order: V) -> None:
        """Add an order, or replace the one with the same key in place. If the queue is full, the namespace with most
        orders loses its newest.
        """
        own = self._orders.setdefault(namespace, {})
        self._count += key not in own
        own[key] = order
        if self._count > self._most:
            # At a tie the newest of all.
            largest = max(reversed(self._orders.values()), key=len)
            fullest = own if len(own) == len(largest) else largest
            fullest.popitem()
            self._count -= 1
            if not own:
                del self._orders[namespace]
        self._any.set()

    def find(self, namespace: str, key: K) -> V | None:
        """The order with this key, without removing it; None if there is none."""
        return self._orders.get(namespace, {}).get(key)

    def drop(self, namespace: str, key: K) -> None:
        """Remove an order, if present."""
        orders = self._orders.get(namespace, {})
        if key in orders:
            del orders[key]
            self._count -= 1
            if not orders:
                del self._orders[namespace]

    async def take(self) -> V:
        """Wait for an order and remove the oldest of the namespace whose turn it is."""
        while not self._orders:
            self._any.clear()
            await self._any.wait()
        namespace = next(iter(self._orders))
        orders = self._orders.pop(namespace)
        order = orders.pop(next(iter(orders)))
        self._count -= 1
        if orders:
            self._orders[namespace] = orders
        return order


class OrderQueues:
    """All queues. ``requests_seen`` has an event for each pod whose kubelet is awaited."""

    def __init__(self) -> None:
        self.wakes: OrderQueue[str, outcomes.RoomFreed] = OrderQueue()
        self.reads: OrderQueue[str, outcomes.ReadPod] = OrderQueue()
        self.permits: FairQueue[ObjectName, outcomes.PersistPermit] = FairQueue()
        self.creations: OrderQueue[ObjectName, outcomes.CreateMigration] = OrderQueue()
        self.migration_reads: OrderQueue[ObjectName, outcomes.ReadMigration] = OrderQueue()
        self.waiting_requests: OrderQueue[str, PodFacts] = OrderQueue()
        self.requests_seen: dict[str, asyncio.Event] = {}

    def add(self, effects: Iterable[outcomes.Effect]) -> None:
        """Queue the ledger's orders."""
        for effect in effects:
            match effect:
                case outcomes.RoomFreed(node):
                    self.wakes.put(node, effect)
                case outcomes.ReadPod(uid):
                    self.reads.put(uid, effect)
                case outcomes.PersistPermit(vm):
                    self.permits.put(vm.namespace, vm, effect)
                case outcomes.PodRequestsChanged(uid):
                    # Most pods are not awaited.
                    if uid in self.requests_seen:
                        self.requests_seen[uid].set()
                case outcomes.CreateMigration(name):
                    self.creations.put(name, effect)
                case outcomes.ReadMigration(name):
                    self.migration_reads.put(name, effect)


AT_ONCE: Final = 48
"""Concurrent calls: less than half of the connections to the API server, to leave some for increases and binds."""

T = TypeVar("T")
R = TypeVar("R")


async def for_each(items: Iterable[T], call: Callable[[T], Awaitable[R]], at_once: int = AT_ONCE) -> list[R]:
    """Results of ``call`` for each of ``items``, in their order."""
    places = asyncio.Semaphore(at_once)

    async def called(item: T) -> R:
        async with places:
            return await call(item)

    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(called(item)) for item in items]
    return [task.result() for task in calls]
