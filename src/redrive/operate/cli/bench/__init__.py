"""`redrive bench`: how fast it is here, beside the raw driver and the peers, in one run (``commands``).

Imports nothing: the processes that are measured are modules of this package, and start often.
"""
