"""Which permits an agent believes (S4.5).

Rules that hold here:

- A permit is above zero, not above the request, and not below what the VM uses by right, each resource by itself.
- Whatever breaks a rule is rejected as a whole, with the reason; what was permitted before stays.
"""

from __future__ import annotations

from protocol.units import Resources


def objection(permit: Resources, requested: Resources, in_use: Resources) -> str | None:
    """Why ``permit`` cannot be believed; None where it can."""
    if not (permit.cpu and permit.mem):
        return f"the permit has a zero: {permit}"
    if not permit.within(requested):
        return f"the permit ({permit}) is above the request ({requested})"
    if not in_use.within(permit):
        return f"the permit ({permit}) is below what the VM uses ({in_use})"
    return None
