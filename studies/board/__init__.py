"""Submissions of results, their checks, and the pages of a board."""
