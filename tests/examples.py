"""Number of examples of property tests: few in the quick suite, many if the same tests are run again.

``make coverage`` runs the pure packages' tests with many (``AUTOSCALE_THOROUGH=1``), the same ones each time, and
``make explore`` runs all property tests with many new ones (``AUTOSCALE_EXPLORE=1``).
"""

import os
from typing import Final

EXPLORES: Final = bool(os.environ.get("AUTOSCALE_EXPLORE"))
THOROUGH: Final = EXPLORES or bool(os.environ.get("AUTOSCALE_THOROUGH"))


def examples(quick: int, thorough: int) -> int:
    """The number to take in this run."""
    return thorough if THOROUGH else quick
