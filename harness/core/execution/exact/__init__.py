"""The room of bit identity: a run of a stack gets the bits that it gets alone, or beside any other runs.

Users rely on it when they resume, verify or change how many runs are stacked. Libraries round an entry by the shape
of the product and by its place in memory, so here are products, functions and orders of sums that do not. Other
files call them by their names and need not know why.
"""
