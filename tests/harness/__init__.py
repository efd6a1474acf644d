"""What tests of both stores stand on: one harness for each store, faults, surroundings, and example data."""
