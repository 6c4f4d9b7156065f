"""The ``danp`` command."""
