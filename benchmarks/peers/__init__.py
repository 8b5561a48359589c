"""One round, and one run of a sweep, in other people's frameworks; each in an environment of its own."""
