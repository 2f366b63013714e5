"""Queues that tenants can fill: no tenant delays or displaces the Events of others."""

from __future__ import annotations

from scheduler_plugin.order_queues import FairQueue


async def test_namespaces_take_turns() -> None:
    """A tenant with thousands of odd objects kept the Events of others waiting for half an hour."""
    queue: FairQueue[int, str] = FairQueue(100)
    for number in range(3):
        queue.put("evil", number, f"evil-{number}")
    queue.put("shop", 0, "shop-0")
    queue.put("evil", 0, "evil-0 anew")
    assert [await queue.take() for _ in range(len(queue))] == ["evil-0 anew", "shop-0", "evil-1", "evil-2"]


async def test_full_queue_drops_of_fullest_namespace() -> None:
    queue: FairQueue[int, str] = FairQueue(4)
    for number in range(9):
        queue.put("evil", number, f"evil-{number}")
    for number in range(3):
        queue.put("shop", number, f"shop-{number}")
    queue.put("late", 0, "late-0")
    taken = [await queue.take() for _ in range(len(queue))]
    assert taken == ["evil-0", "shop-0", "late-0", "evil-1"]


async def test_full_queue_keeps_older_orders() -> None:
    queue: FairQueue[int, str] = FairQueue(1)
    queue.put("shop", 0, "shop-0")
    queue.put("late", 0, "late-0")
    assert (await queue.take(), len(queue)) == ("shop-0", 0)


async def test_dropped_order_is_not_taken() -> None:
    queue: FairQueue[int, str] = FairQueue(2)
    for namespace, number in (("shop", 0), ("bank", 0), ("bank", 1)):
        queue.put(namespace, number, f"{namespace}-{number}")
    queue.drop("shop", 0)
    queue.drop("shop", 0)
    queue.put("bank", 1, "bank-1")
    assert (queue.find("shop", 0), queue.find("bank", 1), len(queue)) == (None, "bank-1", 2)
    assert [await queue.take() for _ in range(len(queue))] == ["bank-0", "bank-1"]
