"""The twin: every port in one process, without services."""
