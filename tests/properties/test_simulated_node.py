"""A simulated node gives away what the local platform's node gives away, whatever is asked of the two."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.errors import GnomonError
from gnomon_platforms.local.nodes import LocalNode
from gnomon_simulator.simulated_platform import NodePlan, SimulatedNode

CORES, MEMORY_BYTES = 6, 100
ASKED = st.tuples(
    st.integers(0, 5), st.sampled_from(["body", "shadow", "end", "resize", "promote"]), st.integers(1, 4), st.integers(0, 60)
)


@given(st.integers(0, CORES), st.lists(ASKED, max_size=30))
def test_both_give_the_same_away(reserved_cores: int, asked: list[tuple[int, str, int, int]]) -> None:
    local = LocalNode(tuple(range(CORES)), CORES, MEMORY_BYTES, "n1", reserved_cores=reserved_cores)
    simulated = SimulatedNode(NodePlan("n1", CORES, MEMORY_BYTES, reserved_cores=reserved_cores, pool=0))
    there: dict[str, tuple[int, int, bool]] = {}

    def given_away(name: str, cores: int, memory_bytes: int, *, shadow: bool) -> None:
        """Claim it, or nothing of it, on both."""
        before = there.get(name, (0, 0, shadow))
        more = cores - before[0], memory_bytes - before[1]
        room = simulated.has_room(*more, reserve=True)
        try:
            local.claim(name, cores, memory_bytes, cores, from_reserve=shadow)
        except GnomonError:
            assert not room
            return
        assert room
        simulated.take(-before[0], -before[1], 0.0, shadow=before[2])
        simulated.take(cores, memory_bytes, 0.0, shadow=shadow)
        there[name] = cores, memory_bytes, shadow

    for number, what, cores, memory_bytes in asked:
        name = f"i-{number}"
        if what in ("body", "shadow") and name not in there:
            given_away(name, cores, memory_bytes, shadow=what == "shadow")
        elif what == "end" and name in there:
            had_cores, had_bytes, shadow = there.pop(name)
            local.release(name)
            simulated.take(-had_cores, -had_bytes, 0.0, shadow=shadow)
        elif what == "resize" and name in there and not there[name][2]:
            given_away(name, cores, there[name][1], shadow=False)
        elif what == "promote" and name in there and there[name][2]:
            given_away(name, there[name][0], max(there[name][1], memory_bytes), shadow=False)
        assert simulated.value(0.0) == local.value()
