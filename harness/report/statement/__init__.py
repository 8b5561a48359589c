"""Two pages for a data protection officer: what privacy costs, what it promises, and what it does not cover."""
