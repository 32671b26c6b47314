"""The engine: plan, the round loop, transport, ledger, recorder."""
