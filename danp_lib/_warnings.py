"""Warnings that name the line of the user's code that they are about."""

import contextlib
import inspect
import warnings
from pathlib import Path

_LIBRARY = str(Path(__file__).parent / "_")[:-1]  # with the separator at its end


def warn(message: str, kind: type[Warning]) -> None:
    """Give a warning that names the line outside the library from which it was called."""
    frame, level = inspect.currentframe(), 1
    # In Python 3.12 this is skip_file_prefixes. Context managers are run by contextlib.
    while frame and frame.f_code.co_filename.startswith((_LIBRARY, contextlib.__file__)):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)
