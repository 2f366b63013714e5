"""Constraints by which kube-scheduler judges nodes, so that VMs only move to where their pods may go (S4.8). Pure."""
