"""What the application asks of the world; each docstring is the contract."""
