"""Execution of one-client functions over a cohort."""
