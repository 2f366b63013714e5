"""Addresses: one owner each, kept until released, reused late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.network.addresses import AddressPool
from deploy.neonvm.ports import NetworkError


def test_key_keeps_address_until_release() -> None:
    pool = AddressPool("pods", "10.0.0.1", "10.0.0.9")
    first = pool.allocate("a")
    pool.allocate("b")
    assert (first, pool.allocate("a"), pool.index("a")) == ("10.0.0.1", "10.0.0.1", 0)


def test_released_address_is_reused_last() -> None:
    pool = AddressPool("pods", "10.0.0.1", "10.0.0.3")
    pool.allocate("a")
    pool.release("a")
    assert [pool.allocate(key) for key in "bcd"] == ["10.0.0.2", "10.0.0.3", "10.0.0.1"]


def test_addresses_that_are_still_owned_are_passed_over() -> None:
    pool = AddressPool("pods", "10.0.0.1", "10.0.0.3")
    for key in "abc":
        pool.allocate(key)
    pool.release("c")
    assert pool.allocate("d") == "10.0.0.3"


def test_exhausted_pool_names_what_is_missing() -> None:
    pool = AddressPool("pods", "10.0.0.1", "10.0.0.1")
    pool.allocate("a")
    with pytest.raises(NetworkError, match="all 1 addresses for pods are taken"):
        pool.allocate("b")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=60))
def test_no_two_keys_ever_share_an_address(orders: list[tuple[bool, int]]) -> None:
    pool = AddressPool("pods", "10.0.0.1", "10.0.0.8")
    owned: dict[int, str] = {}
    for allocate, key in orders:
        if allocate:
            address = pool.allocate(key)
            assert owned.get(key, address) == address
            owned[key] = address
        else:
            pool.release(key)
            owned.pop(key, None)
        assert len(set(owned.values())) == len(owned)
