"""Questions: what each page of docs/results shows."""
