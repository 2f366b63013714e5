"""Tests of Helm's output for the chart."""
