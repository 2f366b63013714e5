"""The scheduler's log lines; details are in the fields of the entry. Pure."""

from __future__ import annotations

from typing import Final

# The cluster and its objects

UNREADABLE: Final = "cannot decode object; accounting it at its maximum"
READY: Final = "ready"

# Leading

LEASE_WON: Final = "Lease acquired"
LEASE_LOST: Final = "Lease lost"
LEASE_KEPT: Final = "not releasing the Lease: the outcome of a write is unknown"
LEASE_NOT_WATCHED: Final = "cannot watch the Lease; polling it instead"
LEADING: Final = "leading"
NOT_LEADING: Final = "not leading yet: a scheduler without a Lease may act"
RIVAL: Final = "another process wrote a permit: only one scheduler may run"
NO_CLIENTS: Final = "EndpointSlice not updated, so clients do not reach this replica yet"
SLICE_UPDATED: Final = "EndpointSlice now points to this replica"
SLICE_CREATED: Final = "created the missing EndpointSlice; it points to this replica"

# Writes

PERMIT_NOT_STORED: Final = "permit not stored"
BIND_IN_DOUBT: Final = "no response to bind; reservation kept"
NODE_NOT_TOUCHED: Final = "node not updated; retrying"
POD_NOT_READ: Final = "pod not read; retrying"
REQUESTS_NOT_WRITTEN: Final = "pod requests not written"
RESIZE_REVERTED: Final = "reverting pod resize rejected by the kubelet"
NO_RESIZE: Final = "the API server has no pods/resize; pod requests do not follow their VMs"
EVENT_DROPPED: Final = "event dropped"
ENTRY_FAILED: Final = "a request of a batch failed"

# Migrations

PLANNING_FAILED: Final = "migration planning failed; retrying"
MOVE_RESERVED: Final = "move reserved"
MOVE_NOT_RESERVED: Final = "move not reserved"
NOT_CREATED: Final = "migration not created; its reservation is released"
CREATION_IN_DOUBT: Final = "no response to creating a migration; reservation kept"
NOT_DELETED: Final = "migration not deleted; retrying"
RELEASED: Final = "removed the finalizer of a deleted migration whose VM is gone"
NOT_RELEASED: Final = "finalizer of a deleted migration not removed; retrying"
CANCELLED: Final = "migration cancelled"
NOT_STARTED: Final = "migration has not started"
STARTED: Final = "migration started"
ALREADY_IN_PROGRESS: Final = "migration already under way"
ENDED: Final = "migration {outcome}"
