"""Engines: what turns token ids into rollouts and continuations. `base` is the contract; nothing is imported here."""
