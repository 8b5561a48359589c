"""How per-client functions are run over a cohort."""
