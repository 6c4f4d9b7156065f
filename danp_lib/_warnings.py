"""Warnings that name the line of the user's code that they are about."""

import contextlib
import inspect
import os
import warnings

_LIBRARY = os.path.dirname(__file__) + os.sep


def warn(message: str, kind: type[Warning]) -> None:
    """Give a warning that names the line outside the library from which it was called."""
    frame, level = inspect.currentframe(), 1
    # In Python 3.12 this is skip_file_prefixes. Context managers are run by contextlib.
    while frame and frame.f_code.co_filename.startswith((_LIBRARY, contextlib.__file__)):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)
