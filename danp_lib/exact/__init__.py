"""The exact posteriors of the three priors."""
