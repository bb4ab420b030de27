"""Adjudication: what a decision on an escrowed transaction sets going, carried out once or handed back to people.

    settings  what the environment says
    words     receipts, decisions, and the state machine
    records   the app's own tables
    desk      submit a receipt, adjudicate it, look at it
    execution carry a decision out in the background; evidence of retries; re-escalation
    http      the same over HTTP
    system    puts them together

README.md, in this folder, has the states and the tables.
"""

import os

from redrive.apps.adjudication.system import make

app = make(os.environ)

__all__ = ["app", "make"]
