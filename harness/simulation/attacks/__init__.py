"""Attacks on runs: what somebody who sees what is released learns about the data."""
