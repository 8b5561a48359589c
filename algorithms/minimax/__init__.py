"""The minimax family; one file per algorithm."""
