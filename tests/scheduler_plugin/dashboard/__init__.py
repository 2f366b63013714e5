"""Tests of the page: its content, its users, and its delivery."""
