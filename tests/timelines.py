"""Load over virtual time: what most tests of scaling policies do with a `Timeline`."""

from gnomon_autoscaler.testing import Timeline


def play(line: Timeline, duration_s: float, **load: object) -> int:
    """Let so much time pass under this load (fields of the timeline's function), and count the Bodies that are live then."""
    for name, value in load.items():
        setattr(line, name, value)
    line.play(duration_s)
    return line.live
