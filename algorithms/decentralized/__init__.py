"""The decentralized family; one file per algorithm."""
