"""The demo: a small web shop, a carrier that goes down, a bug, half a fix, and redrives that find out which half.

``shop`` is what a user would write, ``stage`` lets things happen and asks the store what came of it, ``screen`` draws.
Nothing is faked: every number is read from the store.
"""
