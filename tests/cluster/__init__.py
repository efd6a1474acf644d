"""Real faults of a database: a three-member replica set, a proxy before each member, and the server's fail points."""
