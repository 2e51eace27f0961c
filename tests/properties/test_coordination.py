"""Whatever happens in whatever order, pairs end up as they are wished for, and everybody believes the same.

A node in miniature (`disturbed_world`): a supervisor, a platform and instances that keep to the protocol, each behind queues
that are delivered in any order, beside the real state machine. Instances die, coordinators are replaced in the middle of
anything, wishes come and go, and some Shadows become Bodies. Of some pairs one half is on another node, and may be cut off.
When it is quiet again, what the Bodies do, what the table says and what the platform believes is one and the same.
"""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_coordinator.table import Kind, Status
from tests.properties.disturbed_world import DisturbedWorld


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_when_it_is_quiet_everybody_believes_the_same_and_it_is_what_was_wished(seed: int) -> None:
    world = DisturbedWorld(random.Random(seed))
    for _ in range(world.chance.randint(10, 150)):
        steps = world.quiet_steps()
        if steps and world.chance.random() < 0.7:
            world.chance.choice(steps)()
        else:
            world.disturb()
    world.calm_down()
    assert not world.rising & set(world.wanted), "a Shadow that was to become a Body is none"
    bodies = {name: process for name, process in world.kept.items() if process.kind is Kind.BODY}
    for name, body in bodies.items():
        row = world.node.table.get(name)
        assert row is not None
        wanted = {task.shadow: task for task in world.wanted.values() if task.body == name}
        assert set(body.pairs) == set(row.partners) == world.believed.get(name, set()) == set(wanted)
        for partner, task in wanted.items():
            its_row = world.node.table.get(partner)
            assert body.pairs[partner].blocks == its_row.blocks == task.blocks
            if task.way is None:
                assert world.kept[partner].blocks == task.blocks
                assert body.links[partner] is world.kept[partner].links[partner]
            assert not body.links[partner].closed
            assert row.status is its_row.status is Status.PAIRED
    for task in world.wanted.values():
        if task.afar:
            row = world.node.table.get(task.shadow)
            assert row.status is Status.PAIRED
            assert set(task.blocks) <= set(world.kept[task.shadow].blocks)
            assert not world.kept[task.shadow].links[task.shadow].closed
    shadows = {name for name, process in world.kept.items() if process.shadow is not None}
    assert shadows == {task.shadow for task in world.wanted.values() if task.way is None}, "a Shadow that nobody wants is left"
    assert len(world.node.table.of_kind(Kind.EMPTY, Status.READY)) == 1
