"""The console: what operators see in a browser. Every page is drawn here, and reads without any script.

A route asks ``views`` and ``masked``, acts through ``actions``, and needs the same permissions as the API does, so that
nothing can be done here that is forbidden elsewhere. Pages are plain HTML with forms; the scripts beside them only keep
a page fresh, move through it by keys, and never hold state of their own.

A new screen is a module here with a ``router``, a template, and a line in ``shell.SCREENS``.
"""
