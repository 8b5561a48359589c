"""Claims of papers, and whether recorded runs confirm them."""
