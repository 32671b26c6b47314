"""Measuring compressors in one place, used by the verbs ``bench``, ``study`` and ``advise``.

``timing``: seconds, bytes and errors beside a copy. ``study``: error against bits on random vectors and gradients.
``link``: seconds between processes, and the link that explains them. ``advise`` and ``payoff``: whether a compressor
shortens a step of data-parallel training.
"""
