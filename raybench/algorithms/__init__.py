"""Algorithms, a family per file, which the registry imports when it is first asked for one."""
