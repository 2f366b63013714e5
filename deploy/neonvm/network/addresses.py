"""A pool of addresses (pure)."""

from __future__ import annotations

from collections.abc import Hashable
from ipaddress import IPv4Address

from deploy.neonvm.ports import NetworkError


class AddressPool:
    """The addresses from ``first`` to ``last``, both included. ``what`` names them in errors."""

    def __init__(self, what: str, first: str, last: str) -> None:
        self._what = what
        self._first = int(IPv4Address(first))
        self._size = int(IPv4Address(last)) - self._first + 1
        self._next = 0
        self._taken: dict[Hashable, int] = {}

    def take(self, key: Hashable) -> str:
        """Allocate the address of ``key``, stable until it is released. Raises ``NetworkError`` if all are taken."""
        if key not in self._taken:
            if len(self._taken) == self._size:
                raise NetworkError(f"all {self._size} addresses for {self._what} are taken")
            used = set(self._taken.values())
            # Round-robin instead of the lowest free one: a released address is reused last, after its entries in
            # neighbour tables have expired.
            while self._next in used:
                self._next = (self._next + 1) % self._size
            self._taken[key] = self._next
            self._next = (self._next + 1) % self._size
        return str(IPv4Address(self._first + self._taken[key]))

    def number(self, key: Hashable) -> int:
        """Index of the address of ``key`` in the pool. ``key`` must have an address."""
        return self._taken[key]

    def release(self, key: Hashable) -> None:
        """Release the address of ``key``, if it has one."""
        self._taken.pop(key, None)
