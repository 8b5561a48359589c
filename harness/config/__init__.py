"""Run files, suites and sweeps: YAML to checked values."""
