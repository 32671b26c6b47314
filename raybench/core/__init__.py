"""What every layer above rests on: streams, layouts, numbers per cell, threads, errors, names of plug-ins."""
