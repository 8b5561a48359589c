"""Privacy settings of other systems, and the epsilon that they compose to."""
