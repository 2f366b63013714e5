"""Explanations over HTTP: a small listener, and who may read them."""
