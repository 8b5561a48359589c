"""Real data sets and their partition into clients; `datasets.catalog.load` reads one."""
