"""Who held a Lease when, and who wrote, as the API server's audit log and the store's versions have it."""

from __future__ import annotations

from typing import Any

_CREDENTIAL = "authentication.kubernetes.io/credential-id"


def writes_out_of_term(written: list[dict[str, Any]], account: str) -> list[str]:
    """The writes of a service account's processes that were made while another one of them held the Lease.

    Processes are told apart by their tokens. The order is that of the store, whatever the log's.
    """
    taken = [each for each in written if _account(each) == account and _version(each) is not None]
    holder, found = "", []
    for each in sorted(taken, key=lambda each: _version(each) or 0):
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
    """The store's version that the write made; None where it made none."""
    if entry["responseStatus"]["code"] >= 300:
        return None
    version = entry.get("responseObject", {}).get("metadata", {}).get("resourceVersion")
    return None if version is None else int(version)
