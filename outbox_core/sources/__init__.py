"""Formats from outside, read into the domain's words: pure functions, no I/O."""
