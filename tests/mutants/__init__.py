"""Deliberate mutants: changes that break a promise, each of which the suite must notice. `make mutants` runs them."""
