"""Mathematics shared by families of algorithms."""
