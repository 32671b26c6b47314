"""How long clients compute and messages travel: links, and the clock of simulated clients."""
