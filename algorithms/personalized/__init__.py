"""The personalized family; one file per algorithm."""
