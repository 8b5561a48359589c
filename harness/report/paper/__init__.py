"""From runs to a paper: the method in words, tables, figures and references."""
