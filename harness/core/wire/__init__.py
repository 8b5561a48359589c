"""Protection, compression and cost of messages."""
