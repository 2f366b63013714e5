"""Rows of the page, and permissions of its users. Pure."""
