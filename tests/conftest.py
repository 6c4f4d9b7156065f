"""Settings that every test shares."""

import os

import torch
from hypothesis import settings

# No test opens a window.
os.environ["MPLBACKEND"] = "Agg"

# The tests read what the clone ships.
os.environ.pop("DANP_DATA", None)

# The tests' tensors are too small to share: a second thread only waits, longest on a busy machine.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

# The same examples in every run, and no time limit on one: a slow machine is not a failure.
settings.register_profile("danp_lib", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("danp_lib")
