"""Guests that run in pods of a real cluster, followed and moved through the APIs of their runners."""
