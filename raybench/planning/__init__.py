"""Requested cells become resolved cells, and those become batches."""
