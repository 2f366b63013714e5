"""Finds nodes that could be emptied, and the migrations that this takes (S2.8c).

The advice considers amounts only, not the constraints that kube-scheduler checks. The caller excludes nodes that must
stay, such as control planes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

from protocol.kubernetes.objects import Json, JsonObject, flag, items, name_of, text
from scheduler_plugin.databases import database_in, scope_of
from scheduler_plugin.history.core.samples import Size, size_at
from scheduler_plugin.history.costs.prices import Price

_NO_SIZE = Size(0, 0)
_BINDING = frozenset({"DaemonSet", "Node"})
"""Owner kinds whose pods are bound to a node."""
_OTHER = ""
"""Name of a pod that is not a database."""


@dataclass(frozen=True, slots=True)
class PlacedVm:
    """A database and its reservation. ``moves`` is False for a migrating VM and for a pod."""

    name: str
    reserved: Size
    moves: bool = True


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node. ``price`` is per hour. ``others`` are reservations of other pods, which would need room elsewhere."""

    name: str
    price: Fraction
    unit: Size
    watermark: Size
    reserved: Size
    vms: tuple[PlacedVm, ...]
    others: tuple[Size, ...]
    is_open: bool = True

    @property
    def price_per_unit(self) -> float:
        """Price per compute unit of its VMs' reservations; infinite without VMs."""
        cpu, mem = sum(vm.reserved.cpu for vm in self.vms), sum(vm.reserved.mem for vm in self.vms)
        units = max(Fraction(cpu, max(1, self.unit.cpu)), Fraction(mem, max(1, self.unit.mem)))
        return float(self.price / units) if units else inf


@dataclass(frozen=True, slots=True)
class AdvisedMove:
    """A VM and its target node."""

    vm: str
    target: str


@dataclass(frozen=True, slots=True)
class Emptied:
    """A node that can be removed, its price per hour, the moves, and the number of ``others``, pods to place."""

    node: str
    price: Fraction
    moves: tuple[AdvisedMove, ...]
    others: int


def read_nodes(
    answer: JsonObject,
    prices: Mapping[str, Price],
    reference: Price,
    staying: Collection[str] = (),
    bound: Collection[str] = (),
) -> list[PlacedNode]:
    """Decode the nodes in the scheduler's ``/nodes`` response, except ``staying`` and unreadable ones.

    ``bound`` are pods (``namespace/name``) that exist only as long as their node.
    """
    candidates = (node for node in items(answer, "nodes") if text(node, "name") not in staying)
    nodes = (_node(node, prices.get(text(node, "name"), reference), bound) for node in candidates)
    return [node for node in nodes if node is not None]


def bound_pods(pods: Iterable[JsonObject]) -> set[str]:
    """Pods (``namespace/name``) that are bound to their node, of DaemonSets and static ones.

    >>> bound_pods([{"metadata": {"namespace": "d", "name": "a", "ownerReferences": [{"kind": "DaemonSet"}]}}])
    {'d/a'}
    """
    return {
        str(name_of(pod))
        for pod in pods
        if any(text(owner, "kind") in _BINDING for owner in items(pod, "metadata", "ownerReferences"))
    }


def _node(node: Json, price: Price, bound: Collection[str]) -> PlacedNode | None:
    total, reserved, mark = (size_at(node, key) for key in ("total", "reserved", "watermark"))
    if total is None or reserved is None or mark is None:
        return None
    pods = items(node, "pods")
    vms = [
        PlacedVm(text(pod, "vm"), size_at(pod, "reserved") or _NO_SIZE, _moves(pod)) for pod in pods if text(pod, "vm")
    ]
    # A default for schedulers that report no compute unit.
    unit = size_at(node, "computeUnit") or Size(1000, 4 * 1024**2)
    # Pods that are bound to their node need no room elsewhere.
    alone = [pod for pod in pods if not text(pod, "vm") and text(pod, "pod") not in bound]
    # A pod without a reservation fits anywhere.
    others = [size for size in (size_at(pod, "reserved") for pod in alone) if size is not None and size != _NO_SIZE]
    is_open = flag(node, "open")
    return PlacedNode(text(node, "name"), price.of(total), unit, mark, reserved, tuple(vms), tuple(others), is_open)


def _moves(pod: Json) -> bool:
    return not flag(pod, "migrating") and not scope_of(database_in(text(pod, "vm"))).of_pods


def emptied(nodes: Iterable[PlacedNode]) -> list[Emptied]:
    """Nodes that could be emptied, most expensive first, with the moves of each to nodes that stay."""
    left = {node.name: node for node in nodes}
    gone: list[PlacedNode] = []
    targets: dict[str, str] = {}
    # Most expensive per unit first, for the highest saving per move.
    for node in sorted(left.values(), key=lambda place: (-place.price_per_unit, place.name)):
        here = left[node.name]  # including VMs from earlier nodes
        others = [place for place in left.values() if place.name != node.name and place.is_open]
        pieces = _largest_first([*here.vms, *(PlacedVm(_OTHER, size) for size in here.others)])
        destinations = _targets(pieces, others)
        # There is no room elsewhere.
        if destinations is None or not others:
            continue
        # Each VM moves once.
        del left[node.name]
        gone.append(node)
        for piece, target in zip(pieces, destinations, strict=True):
            # VMs of later nodes must fit in addition.
            left[target] = _with(left[target], piece)
            targets[piece.name] = target
    return [_emptied(node, targets) for node in gone]


def _emptied(node: PlacedNode, targets: Mapping[str, str]) -> Emptied:
    moves = tuple(AdvisedMove(vm.name, targets[vm.name]) for vm in _largest_first(node.vms))
    return Emptied(node.name, node.price, moves, len(node.others))


_Room = tuple[float, str, Size, Size]
"""A possible target: utilization (reservation by watermark), name, reservation, watermark."""


def _targets(vms: Sequence[PlacedVm], others: Sequence[PlacedNode]) -> list[str] | None:
    """The target of each VM; None if one has no target."""
    # Migrating VMs must arrive first, and pods cannot migrate.
    if not all(vm.moves for vm in vms):
        return None
    rooms = sorted(_room(node.name, node.reserved, node.watermark) for node in others)
    targets = []
    for vm in vms:
        # The fullest node with room below its watermark, so that few nodes stay.
        place = next((place for place in reversed(range(len(rooms))) if _fits(rooms[place], vm)), None)
        if place is None:
            return None
        _, name, reserved, watermark = rooms.pop(place)
        insort(rooms, _room(name, reserved + vm.reserved, watermark))
        targets.append(name)
    return targets


def _room(name: str, reserved: Size, watermark: Size) -> _Room:
    # By CPU only: it just orders the nodes.
    return reserved.cpu / max(1, watermark.cpu), name, reserved, watermark


def _largest_first(vms: Iterable[PlacedVm]) -> list[PlacedVm]:
    return sorted(vms, key=lambda vm: (-vm.reserved.cpu, -vm.reserved.mem, vm.name))


def _fits(room: _Room, vm: PlacedVm) -> bool:
    _, _, reserved, watermark = room
    return reserved.cpu + vm.reserved.cpu <= watermark.cpu and reserved.mem + vm.reserved.mem <= watermark.mem


def _with(node: PlacedNode, vm: PlacedVm) -> PlacedNode:
    reserved = node.reserved + vm.reserved
    # Kept separately, because it may have to move again with this node's pods.
    if vm.name == _OTHER:
        return replace(node, reserved=reserved, others=(*node.others, vm.reserved))
    return replace(node, reserved=reserved, vms=(*node.vms, vm))
