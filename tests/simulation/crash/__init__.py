"""The crash matrix: each use case, struck before and after each call that it makes of a port, alone and beside another.

The points are not listed: a first play without a fault counts the calls. `python -m tests.simulation.crash` plays all
of them and prints how many there were.
"""
