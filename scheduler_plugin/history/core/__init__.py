"""The data model of a history: samples, spans, integrals, coarser spans. Pure.

Rules that hold here:

- Times are milliseconds since 1970, CPU is in milli-vCPUs, memory in KiB: integrals are whole numbers and exact.
- An amount that was not seen is None, never zero; time without samples is a gap, and reports state its length.
"""
