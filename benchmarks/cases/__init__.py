"""What is measured: a module for each group of cases."""
