"""From runs to a paper: tables, figures, the privacy statement and references."""
