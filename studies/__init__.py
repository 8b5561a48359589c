"""Studies on top of the harness: papers, other systems, and boards of submissions. Not installed."""
