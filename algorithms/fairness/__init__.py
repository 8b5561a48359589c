"""The fairness family, between sensitive groups and between clients; one file per algorithm."""
