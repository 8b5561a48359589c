"""A module for each page of docs/results: its values, table and picture."""
