"""A module for each page of docs/results: its figures, table and picture."""
