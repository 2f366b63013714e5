"""Lease holders and writers over time, from the API server's audit log and the store's versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

_CREDENTIAL = "authentication.kubernetes.io/credential-id"


def writes_out_of_term(written: list[dict[str, Any]], account: str, since: datetime) -> list[str]:
    """The writes of a service account's processes ``since`` then that were made while another of them held the Lease.

    Processes are told apart by their tokens. The order is that of the store, whatever the log's; the first process that
    wrote held the Lease.
    """
    taken = [
        each
        for each in written
        if _account(each) == account
        and _version(each) is not None
        and datetime.fromisoformat(each["requestReceivedTimestamp"]) >= since
    ]
    in_order = sorted(taken, key=lambda each: _version(each) or 0)
    holder, found = _process(in_order[0]), []
    for each in in_order:
        about = each["objectRef"]
        if about["resource"] == "leases":
            holder = _process(each)
        elif _process(each) != holder:
            found.append(f"{each['verb']} {about['resource']} {about.get('name', '')} by {_process(each)}")
    return found


def _account(entry: dict[str, Any]) -> str:
    return str(entry["user"]["username"]).rpartition(":")[2]


def _process(entry: dict[str, Any]) -> str:
    return str(entry["user"]["extra"][_CREDENTIAL][0])


def _version(entry: dict[str, Any]) -> int | None:
    """The store's version that the write made; None if it made none."""
    if entry["responseStatus"]["code"] >= 300:
        return None
    version = entry.get("responseObject", {}).get("metadata", {}).get("resourceVersion")
    return None if version is None else int(version)
