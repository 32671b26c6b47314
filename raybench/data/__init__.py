"""Data sets by name or path, their labels, and how their rows are dealt out to clients."""

from raybench.data.dataset import load as load
from raybench.data.dataset import load_test as load_test
from raybench.data.examples import Examples as Examples
from raybench.data.examples import Pair as Pair
from raybench.data.images import images as images
from raybench.data.split import SPLIT_TAGS as SPLIT_TAGS
from raybench.data.split import SPLITS as SPLITS
from raybench.data.split import by_column as by_column
from raybench.data.split import hold_out as hold_out
from raybench.data.split import split as split
from raybench.data.tables import Dataset as Dataset
from raybench.data.text import text as text
from raybench.data.views import views as views
