"""The vertical family; one file per algorithm."""
