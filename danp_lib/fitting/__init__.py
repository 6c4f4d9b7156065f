"""From a table of one's own records to a trained model: :func:`~danp_lib.fitting.fit.fit`."""
