"""Tables of a report: columns, pivots, model selection and their formats."""
