"""The command line: `parser` holds the grammar, the other modules carry out its commands."""
