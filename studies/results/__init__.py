"""Results pages: figures, tables and pictures made from the committed leaderboards."""
