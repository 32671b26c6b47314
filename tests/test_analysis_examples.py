"""The examples in the docstrings of the analysis run, and print what they say."""

import doctest
import importlib

import pytest

pytestmark = pytest.mark.thorough

MODULES = (
    "aligned",
    "frames",
    "rankings",
    "to_target",
    "tuned",
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name):
    module = importlib.import_module(f"raybench.analysis.{name}")
    done = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert done.attempted
    assert not done.failed
