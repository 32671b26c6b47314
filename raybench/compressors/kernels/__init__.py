"""Compiled kernels that operators share, each beside its plain torch reference; no operators here."""
