"""Stores: where events live. ``base`` is the contract, the others keep it."""
