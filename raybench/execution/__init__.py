"""From requested cells to committed rows: resolve, plan, run, record."""
