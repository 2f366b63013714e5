"""Tests of the page's core, without a server."""
