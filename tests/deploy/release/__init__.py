"""Tests of releases: their content, their description, and reproducible builds."""
