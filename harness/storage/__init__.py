"""Storage of results."""
