"""Settings that every test shares."""

import os

from hypothesis import settings

# No test opens a window.
os.environ["MPLBACKEND"] = "Agg"

# The same examples in every run, and no time limit on one: a slow machine is not a failure.
settings.register_profile("danp_lib", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("danp_lib")
