"""What happens to a message between a client and the server, and what it costs."""
