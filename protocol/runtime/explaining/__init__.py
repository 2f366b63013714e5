"""Explanations over HTTP: a small listener, and its access control."""
