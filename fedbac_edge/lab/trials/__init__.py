"""Federations under faults: deaths at write points, strangers, bad links."""
