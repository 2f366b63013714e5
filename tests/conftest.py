"""For the whole suite: property tests are judged by what they find, not by how busy the machine is.

They take the same examples each time, so that a failure belongs to the change that made it. ``make explore`` takes new
ones (``AUTOSCALE_EXPLORE=1``).
"""

import os
import sys
from importlib.util import find_spec

from hypothesis import HealthCheck, settings

EXPLORES = bool(os.environ.get("AUTOSCALE_EXPLORE"))

settings.register_profile(
    "suite", deadline=None, derandomize=not EXPLORES, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

if find_spec("sniffio") is None:
    # httpx looks for it with every request to an application in the same process; remember that it is not there.
    sys.modules["sniffio"] = None  # type: ignore[assignment]
