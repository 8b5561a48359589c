"""Reports as pure functions of run records: tables, figures and a self-contained page."""
