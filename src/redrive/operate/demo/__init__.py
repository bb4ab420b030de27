"""The demo: a web shop, a slow bank, a carrier that goes down and comes back, a bug, half a fix, and redrives.

``shop`` is what a user would write, ``stage`` lets things happen and asks the store what came of it, ``screen`` draws.
Nothing is faked: every number is read from the store.
"""
