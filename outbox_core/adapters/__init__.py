"""What the ports are in the real world: the in-memory twin and MongoDB."""
