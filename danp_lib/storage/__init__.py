"""Checkpoints, their cards, the pretrained models and the benchmark tasks."""
