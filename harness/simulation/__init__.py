"""From a run's specification to its rounds."""
