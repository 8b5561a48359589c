"""Results pages: values, tables and pictures made from the committed leaderboards."""
