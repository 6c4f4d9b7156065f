"""The exact posteriors of the priors."""
