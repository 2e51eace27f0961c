"""What happens in a node in miniature that follows from nothing before: wishes come and go, instances die, a way is cut."""

from dataclasses import replace

from gnomon_coordinator.effects import Descriptors
from gnomon_coordinator.protocol import Change, Task, Way
from gnomon_coordinator.table import Kind
from tests.properties.coordinated_world import World

SHADOWS = 2
"""That a Body is wished to have at most."""


class DisturbedWorld(World):
    """The node, and what disturbs it."""

    def disturb(self) -> None:
        what = self.chance.choice(["body", "create", "create", "destroy", "change", "promote", "kill", "cut", "restart", "time"])
        bodies = [name for name, process in self.kept.items() if process.kind is Kind.BODY]
        if what == "body" and len(bodies) < 3:
            self.names += 1
            self.make(f"b{self.names}", Kind.BODY)
        elif what == "create" and bodies:
            self._want(self.chance.choice(bodies))
        elif what == "destroy" and self.wanted:
            shadow = self.chance.choice(sorted(self.wanted))
            self.ended.add(shadow)
            self.wishes.append(lambda: self.node.destroy(shadow, self.now_s))
        elif what == "change" and self.wanted:
            self._alter(self.chance.choice(sorted(self.wanted)))
        elif what == "promote" and (here := [name for name, task in self.wanted.items() if not task.afar and task.way is None]):
            rising = self.chance.choice(sorted(here))
            self.rising.add(rising)
            self.wishes.append(lambda: self.node.promote(rising, Descriptors(()), self.now_s))
        elif what == "kill" and self.kept:
            self.die(self.kept[self.chance.choice(sorted(self.kept))])
        elif what == "cut" and self.far:
            self._cut(self.chance.choice(sorted(self.far)))
        elif what == "restart" and self.chance.random() < 0.3:
            self.restart()
        elif what == "time":
            self.pass_time(self.chance.choice([0.01, 0.1, 1.0]))
            self.slow = self.now_s > 4.0

    def _cut(self, shadow: str) -> None:
        """The other node's half of a pair has gone."""
        link = self.far.pop(shadow)
        link.closed = True
        self.bereaved.add(shadow)
        for holder in list(link.holders):
            if holder.alive:
                holder.notice(self)

    def _want(self, body: str) -> None:
        if sum(task.body == body for task in self.wanted.values()) >= SHADOWS:
            return
        self.names += 1
        shadow = f"s{self.names}"
        where = self.chance.choice(["here", "here", "the Shadow", "the Body"])
        task = self._task(shadow, body)
        if where == "the Shadow":
            task = replace(task, way=Way("http://other", "token"))
        elif where == "the Body":
            task = replace(task, body=f"elsewhere-{self.names}", afar=True)
        self.wanted[shadow] = task
        self.wishes.append(lambda: self._wish(shadow))

    def _task(self, shadow: str, body: str) -> Task:
        cpus = self.chance.choice([(0,), (1,), (0, 1)])
        return Task(shadow, body, "/p", "/w", "/l", "shared", len(cpus), cpus, self._blocks(), (0, 1), 4)

    def _blocks(self) -> tuple[int, ...]:
        return tuple(sorted(self.chance.sample(range(4), self.chance.randint(1, 3))))

    def _alter(self, shadow: str) -> None:
        if shadow in self.rising:
            return
        task = self.wanted[shadow] = replace(self.wanted[shadow], blocks=self._blocks())
        change = Change(task.cores, task.cpus, task.blocks, task.split)
        self.wishes.append(lambda: self.node.change(shadow, change, self.now_s))
