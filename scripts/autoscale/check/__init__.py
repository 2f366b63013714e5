"""``autoscale check``: whether an installation works, line by line, and what to do where it does not.

- What was seen of the cluster is ``Facts``; a judge makes what it finds of facts alone; the table of
  checks (``table.py``) is the only list of them, and docs/check.md is made of it.
- What may not be looked at, or is not installed, is a skipped line with its reason, never an error.
"""
