"""The centralized family; one file per algorithm."""
