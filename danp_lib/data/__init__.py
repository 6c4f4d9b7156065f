"""Points, tasks and where they come from: priors over functions, noising, tables."""
