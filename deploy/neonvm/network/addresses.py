"""A pool of addresses (pure)."""

from __future__ import annotations

from collections.abc import Hashable
from ipaddress import IPv4Address

from deploy.neonvm.ports import NetworkError


class AddressPool:
    """The addresses from ``first`` to ``last``, both included. ``users`` names their users in errors."""

    def __init__(self, users: str, first: str, last: str) -> None:
        self._users = users
        self._first = int(IPv4Address(first))
        self._size = int(IPv4Address(last)) - self._first + 1
        self._next = 0
        self._allocated: dict[Hashable, int] = {}

    def allocate(self, key: Hashable) -> str:
        """Allocate the address of ``key``, stable until it is released. Raises ``NetworkError`` if all are taken."""
        if key not in self._allocated:
            if len(self._allocated) == self._size:
                raise NetworkError(f"all {self._size} addresses for {self._users} are taken")
            used = set(self._allocated.values())
            # Round-robin instead of the lowest free one: a released address is reused last, after its entries in
            # neighbour tables have expired.
            while self._next in used:
                self._next = (self._next + 1) % self._size
            self._allocated[key] = self._next
            self._next = (self._next + 1) % self._size
        return str(IPv4Address(self._first + self._allocated[key]))

    def index(self, key: Hashable) -> int:
        """Index of the address of ``key`` in the pool. An address must be allocated to ``key``."""
        return self._allocated[key]

    def release(self, key: Hashable) -> None:
        """Release the address of ``key``, if it has one."""
        self._allocated.pop(key, None)
