"""Options of `gnomon`: its mechanisms, each of which can be left out, and the constants that are the same for every model."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Options:
    """The mechanisms of `gnomon`; a user sets none of them but `without`.

    `loss` is the share of requests that a rule may have lost in the window of `window_s`. Every `renew_s` the rule is checked,
    and a new one is chosen if the load has changed. After half of `keep_s` to all of it the rule is replayed, and a new one is
    chosen if this one loses too much; that time doubles up to `longest_keep_s` while the rule is that of the least Bodies. After
    half of `longest_keep_s` to all of it the speed of Bodies is computed and a rule chosen in any case.
    `spread` is how many standard deviations of the count more than the window's arrivals are expected.

    `reaction`: rules follow the arrivals of the last second; else the number is a floor. `uncertainty`: see `spread`. `queue`:
    what waits counts beside the rule. `lending`: where nodes lend cores, a Body borrows up to all cores of its node for each
    batch; else it has the function's own number. `shadows`: rules may meet a reaction with Shadows until Bodies have started.
    """

    loss: float = 0.001
    window_s: float = 300.0
    renew_s: float = 5.0
    keep_s: float = 15.0
    longest_keep_s: float = 60.0
    spread: float = 2.0
    reaction: bool = True
    uncertainty: bool = True
    queue: bool = True
    lending: bool = True
    shadows: bool = True

    def without(self, names: tuple[str, ...]) -> Options:
        """Return the options with the named mechanisms disabled."""
        return replace(self, **dict.fromkeys(names, False))
