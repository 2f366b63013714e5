"""Tests of the history: its recording and its queries."""
