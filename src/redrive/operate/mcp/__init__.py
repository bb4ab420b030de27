"""MCP: what agents do. They look, replay one event and plan; for more than a few events people approve.

``fence`` keeps text from outside from passing for anything but data; ``shapes`` are what tools take and give; ``tools``
are thin over views and actions like every other surface; ``trouble`` tells errors so that a model can act on them;
``server`` speaks the protocol, and is the only file that knows the SDK.
"""
