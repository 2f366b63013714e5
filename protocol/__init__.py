"""What all programs must agree on: quantities, messages, names, smoothing and ranking.

Rules that hold in this package:

- Except for ``runtime`` it is pure: no clock, no randomness, no I/O, no logging, no framework.
- It imports neither service; ``units``, ``smoothing`` and ``ranking`` do not import ``messages``.
- CPU, memory, time and compute units cross function boundaries only as the types of ``units``.
"""

from typing import Final

VERSION: Final = "0.3.0"
"""Semantic version of all programs, images and the chart. For the wire protocol see ``versions``."""
