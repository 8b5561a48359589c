"""The search for settings: its runs, the choice, and the privacy that it would cost."""
