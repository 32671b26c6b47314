"""Worst cases by semidefinite programming: a method's own file, proven or refuted by machine (``raybench certify``)."""
