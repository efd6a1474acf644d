"""Actors over the twin, of which a scheduler lets exactly one make exactly one store call at a time."""
