"""The search for settings: many runs, what they choose, and what that would cost in privacy."""
