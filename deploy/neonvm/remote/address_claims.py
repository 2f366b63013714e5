"""Claims of IPs on the flat network, stored as IPAddress objects.

A VM's claims are deleted before its finalizer is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Never

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer, ObjectChange
from deploy.neonvm.objects.pod_form import is_on_flat_network
from deploy.neonvm.ports import GuestError
from deploy.neonvm.remote.address_choice import (
    AddressRange,
    claim,
    free_addresses,
    own_address,
    owner_of,
    used_addresses,
)
from deploy.neonvm.texts import controller as texts
from protocol.kubernetes.api import ApiError, Tolerating
from protocol.kubernetes.objects import Json, name_of, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import IP_ADDRESSES, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Seconds

_SWEEP: Final = Seconds(600.0)


class AddressClaims:
    """The claims of one cluster; ``claims`` and ``vms`` are informers."""

    def __init__(self, client: ApiClient, claims: Informer, vms: Informer, within: AddressRange) -> None:
        self._client = client
        self._claims = claims
        self._vms = vms
        self._within = within
        self._created: dict[str, str] = {}  # by the VM's uid: claims that may not be in the cache yet
        self._by_vm: dict[str, dict[ObjectName, Json]] = {}
        claims.listen(self._changed)

    async def claim_for(self, vm: Json) -> str:
        """The VM's IP, claimed on the first call; empty if the VM is not on the flat network.

        Raises ``ApiError``, and ``GuestError`` if no IP is free.
        """
        if not is_on_flat_network(vm):
            return ""
        await self._claims.synced.wait()
        address = own_address(vm, self._of(uid_of(vm)).values()) or self._created.get(uid_of(vm), "")
        return address or await self._create_claim(vm)

    def _of(self, uid: str) -> Mapping[ObjectName, Json]:
        return self._by_vm.get(uid, {})

    def _changed(self, change: ObjectChange) -> None:
        if change.before is not None and (uid := owner_of(change.before)[1]):
            self._by_vm.get(uid, {}).pop(change.name, None)
            if not self._of(uid):
                self._by_vm.pop(uid, None)
        if change.after is not None and (uid := owner_of(change.after)[1]):
            self._by_vm.setdefault(uid, {})[change.name] = change.after
            # From here on only the cache counts: deleting the claim frees the address.
            if self._created.get(uid) == change.name.name:
                del self._created[uid]

    async def _create_claim(self, vm: Json) -> str:
        claimed = {name.name for name in self._claims.objects} | set(self._created.values())
        used = used_addresses(self._vms.objects.values())
        for address in free_addresses(vm, self._within, claimed, used):
            # It may exist: created by another controller, or by a request of ours whose response was lost.
            with Tolerating(RefusalKind.ALREADY_EXISTS):
                await self._client.create(IP_ADDRESSES, "", claim(vm, address))
                return self._remembered(vm, address)
            if await self._is_of(vm, address):
                return self._remembered(vm, address)
        raise GuestError(texts.ADDRESSES_TAKEN.format(count=self._within.size))

    def _remembered(self, vm: Json, address: str) -> str:
        # The cache may have the claim already: its event can overtake the response.
        if ObjectName("", address) not in self._of(uid_of(vm)):
            self._created[uid_of(vm)] = address
        return address

    async def _is_of(self, vm: Json, address: str) -> bool:
        """Return True if the claim of ``address`` is this VM's."""
        with Tolerating(RefusalKind.NOT_FOUND):
            return owner_of(await self._client.get(IP_ADDRESSES, ObjectName("", address)))[1] == uid_of(vm)
        return False

    async def release(self, vm: ObjectName, uid: str) -> None:
        """Delete all claims of the VM. Raises ``ApiError``."""
        await self._claims.synced.wait()
        # The owner must match too; the label alone could be forged.
        addresses = {name.name for name, own_claim in self._of(uid).items() if owner_of(own_claim)[0] == vm}
        if uid in self._created:
            addresses.add(self._created[uid])
        for address in sorted(addresses):
            await self._delete(address, uid)
        self._created.pop(uid, None)

    async def _delete(self, address: str, uid: str) -> None:
        name = ObjectName("", address)
        with Tolerating(RefusalKind.NOT_FOUND):
            existing = await self._client.get(IP_ADDRESSES, name)
            if owner_of(existing)[1] == uid:
                # With the uid: another VM may have claimed the IP since.
                await self._client.delete(IP_ADDRESSES, name, uid_of(existing))

    async def run(self, clock: Clock) -> Never:
        """Sweep every ten minutes until cancelled."""
        await self._claims.synced.wait()
        await self._vms.synced.wait()
        while True:
            with suppress(ApiError):  # retried by the next sweep
                await self.sweep()
            await clock.sleep(_SWEEP)

    async def sweep(self) -> None:
        """Delete claims of deleted VMs. Raises ``ApiError``."""
        for address_claim in list(self._claims.objects.values()):
            vm, uid = owner_of(address_claim)
            # The cache may be stale, so check with the API server.
            if uid and uid_of(self._vms.get(vm) or {}) != uid and await self._is_gone(vm, uid):
                await self._delete(name_of(address_claim).name, uid)

    async def _is_gone(self, vm: ObjectName, uid: str) -> bool:
        with Tolerating(RefusalKind.NOT_FOUND):
            return uid_of(await self._client.get(VIRTUAL_MACHINES, vm)) != uid
        return True
