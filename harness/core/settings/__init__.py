"""Settings of privacy and compression, as a run file gives them."""
