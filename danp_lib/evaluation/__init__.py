"""Scores on the benchmark tasks, as results and as a table."""
