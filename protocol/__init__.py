"""Everything that all parties must agree on: quantities, messages, names, smoothing and ranking.

Rules that hold in this package:

- Outside of ``runtime`` it is pure: no clock, no randomness, no input or output, no logging, no framework.
- It imports neither service; ``units``, ``smoothing`` and ``ranking`` never see ``messages``.
- CPU, memory, time and compute units cross function boundaries only as the types of ``units``.
"""

from typing import Final

VERSION: Final = "0.3.0"
"""The version of every program, image and chart of a commit (Semantic Versioning); the wire has ``versions``."""
