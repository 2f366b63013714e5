"""The demonstration: a VM follows its load, is watched while it does, and is judged afterwards."""
