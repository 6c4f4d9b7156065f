"""Predictive distributions and how they are scored."""
