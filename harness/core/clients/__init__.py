"""Data at home: who takes part, batches, gradients, and the rows that clients keep."""
