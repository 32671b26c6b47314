"""Sweep files: YAML to requested cells with content ids. Reads no data and needs no torch."""

from raybench.spec.cells import Cell, Section, Step, Sweep
from raybench.spec.grid import load
from raybench.spec.schema import json_schema

__all__ = ["Cell", "Section", "Step", "Sweep", "json_schema", "load"]
