"""Postgres in ordinary pods that our agents resize in place: by CloudNativePG, by a StatefulSet, refused ones (B.7)."""
