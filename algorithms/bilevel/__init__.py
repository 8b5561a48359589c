"""The bilevel family; one file per algorithm."""
