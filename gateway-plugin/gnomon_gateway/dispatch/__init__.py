"""Dispatch: which request goes to which instance when, as a state machine without clocks, sockets or tasks.

The live gateway and the simulator run the same `Dispatcher`.
"""
