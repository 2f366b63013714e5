"""Data model of a history: samples, spans, and their integrals. Pure.

Rules:

- Times are Unix milliseconds, CPU is in milli-vCPUs, memory in KiB, so integrals are exact integers.
- An unknown amount is None, never zero; time without samples is a gap, and reports state its length.
"""
