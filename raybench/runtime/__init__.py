"""The Ray runtime: packs of batches as Tune trials, in one process each or on a Train worker group."""
