"""Batches and losses, the loop, optimizers and recipes."""
