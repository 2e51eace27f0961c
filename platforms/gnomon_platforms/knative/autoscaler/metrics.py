"""What queue-proxy tells of the last second, at port 9090: one protobuf message `Stat` of `pkg/autoscaler/metrics/stat.proto`.

What came by an activator is in both numbers, and told once more beside them; nothing here depends on the way that requests took.

Figures of Revisions on Prometheus pages: `FIGURE{k8s_namespace_name="users",kn_revision_name="f-00001",…} 3`.

Who wrote a page is not asked: what cannot be read is left out, and labels are bounded, because a page that opens braces and
closes none would be looked through once for each of them.

How many requests wait at an activator, or in our gateway, by a Prometheus page: `kn_revision_request_queued` of each Revision.

The page is there while `metrics-protocol` is `prometheus` in `config-observability`. The number goes up when a request comes and
down when a pod takes it, so whoever looks while one waits sees it.

The gateway tells by the same figure, and the same page, of all requests that it has and no pod tells of: queue-proxy counts a
batch as one request, so of a batch of eight that runs the gateway tells seven. By a second figure, which counts up, it tells how
many requests have gone to pods in batches beyond one for each: what queue-proxies have not counted as arrivals.

Only this figure is asked for. The whole page has several histograms for each Revision: 0.5 MB with ten Revisions, which
costs the activator 6 ms and us 2 ms each time; of the one figure it is 2 and 0.3 ms. Who does not know the word sends all.

How long batches take, as a gateway has learned it: a figure of its page for each Revision and size of batch, and their spread.

    gnomon_revision_batch_seconds{k8s_namespace_name="default",kn_revision_name="classify-00001",batch_size="4"} 0.081
    gnomon_revision_batch_spread{k8s_namespace_name="default",kn_revision_name="classify-00001"} 0.05

The spread is how far batches have lately been from what was foretold of them, as a share of that. Plans are made of these
(`batch`), and policies that know how much an instance carries (`od`, `lv`, `mark`, `target-tracking`).

One Revision's load: what pods and activators told, as cumulative counters.

A pod tells means of its last second, so a second that is not asked for is lost: it is taken to have been like the one that is.
What waits at activators is a number now, taken to hold until the next look. Between two looks the counters go on rising as they
did, and where they turn out to have risen too far they stand still until the truth has caught up: policies see a steady line,
nothing is counted twice, and nothing comes late.

Requests that pods hold and those that wait are added: a request leaves the activator's queue when a pod takes it.

Asks pods every second and activators five or twenty times a second, and hands what they tell on.

Each Revision has a task of its own: its load is delivered as soon as its own pods have answered, whatever pods of others do. Of
many pods a random sample is asked each second, as large as Knative's own autoscaler takes it, and its mean stands for all: that
also bounds what one Revision can take up.

A request to a Revision without pods waits at an activator, so the pause between two looks there is what it waits for longer:
0.025 s on average while any Revision has no pods, when activators are asked more often. Each activator is asked by itself, and
what it tells is handed on at once, with what the others told last: one on a node that has died, which a connection is tried to
for three seconds, delays nobody. A ready pod that does not answer in time is taken to be as the Revision's others; pods none of
which answers, and an activator, as they were, for a moment. Activators that have not answered for a while mean that nobody sees
what waits, and `seeing` says so.

What gateways have learned of Revisions' batches, asked of each every few seconds.

    each ready gateway ▶ its page ▶ seconds of batches of 1, 2, … and their spread ▶ one curve for each Revision

How many gateways there are matters as much: each has a queue of its own for what the ingress sends to it, and a plan for the
arrivals of all would be one for none of them. One more counts at once, one less after a while: plans for fewer queues than there
are overload pods, plans for more are cautious, and while gateways are replaced one by one, or one is restarted, they stay. One
that does not answer for a while is taken to know what it said last; what it knew goes with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from gnomon_core import protobuf
from gnomon_core.addresses import http_url
from gnomon_core.background import Background
from gnomon_core.clock import Clock
from gnomon_core.functions import FunctionKey
from gnomon_core.scaling import LoadCounters
from gnomon_platforms.knative.autoscaler.objects import RevisionPod
from gnomon_platforms.knative.autoscaler.status import asked
from gnomon_platforms.knative.resources import ACTIVATOR_METRICS_PORT, AUTOSCALING_PORT

if TYPE_CHECKING:
    import aiohttp


PAGE = "/metrics"
MOST_BYTES = 4096
"""A pod's name has 253 bytes at most, and all else is 50."""
MOST = 1e6
"""No pod holds, or is sent in a second, more requests."""


@dataclass(frozen=True, slots=True)
class PodStat:
    """The last second of a pod, or of several: requests in them on average, and how many came."""

    concurrency: float = 0.0
    rps: float = 0.0

    def __add__(self, other: PodStat) -> PodStat:
        return PodStat(self.concurrency + other.concurrency, self.rps + other.rps)

    def __mul__(self, pods: float) -> PodStat:
        return PodStat(self.concurrency * pods, self.rps * pods)


def read_stat(data: bytes) -> PodStat:
    """The statistics in a message.

    Raises ValueError for what is none.
    """
    found = protobuf.read(data)
    return PodStat(concurrency=_requests(found, 2), rps=_requests(found, 4))


def _requests(found: protobuf.Fields, number: int) -> float:
    value = protobuf.double(found, number)
    if not 0.0 <= value <= MOST:
        msg = f"field {number} is {value}"
        raise ValueError(msg)
    return value


_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def lines_of(*figures: str) -> re.Pattern[str]:
    """The lines of these figures, for `read`."""
    return re.compile(rf"^({'|'.join(figures)})\{{([^}}\n]{{1,1000}})\}} ([0-9.eE+-]{{1,50}})(?!\S)", re.MULTILINE)


def labels_of(key: FunctionKey) -> str:
    """The labels that name a Revision."""
    return f'k8s_namespace_name="{key.namespace}",kn_revision_name="{key.name}"'


def read(lines: re.Pattern[str], page: str) -> Iterator[tuple[str, FunctionKey, Mapping[str, str], float]]:
    """By line that names a Revision: the figure, the Revision, all labels and the number."""
    for figure, labels_text, number in lines.findall(page):
        labels = dict(_LABEL.findall(labels_text))
        name, namespace = labels.get("kn_revision_name"), labels.get("k8s_namespace_name")
        try:
            value = float(number)
        except ValueError:
            continue
        if name and namespace:
            yield figure, FunctionKey(name, namespace), labels, value


FIGURE = "kn_revision_request_queued"
BESIDE = "gnomon_revision_requests_beside_total"
WAITING_PAGE = f"/metrics?name[]={FIGURE}"
WAITING_MOST_BYTES = 8 << 20
"""A Revision's line has about 200 bytes, so that is 40,000 of them; of the whole page it is 160."""

_LINES = {figure: lines_of(figure) for figure in (FIGURE, BESIDE)}


def waiting_to_text(counts: Mapping[FunctionKey, int], beside: Mapping[FunctionKey, int]) -> str:
    """The page of a gateway, as activators write it: requests that no pod tells of, and those that none has counted."""
    return _lines(FIGURE, "gauge", counts) + _lines(BESIDE, "counter", beside)


def waiting(page: str) -> dict[FunctionKey, float]:
    """The requests that wait, by Revision; those without any are left out."""
    return _read(FIGURE, page)


def beside(page: str) -> dict[FunctionKey, float]:
    """The requests, ever since their gateway began, that no pod has counted, by Revision."""
    return _read(BESIDE, page)


def _lines(figure: str, kind: str, counts: Mapping[FunctionKey, int]) -> str:
    lines = [f"{figure}{{{labels_of(key)}}} {count}" for key, count in counts.items()]
    return "\n".join([f"# TYPE {figure} {kind}", *lines, ""])


def _read(figure: str, page: str) -> dict[FunctionKey, float]:
    found: dict[FunctionKey, float] = {}
    for _, key, _, count in read(_LINES[figure], page):
        if count > 0.0:
            found[key] = found.get(key, 0.0) + count
    return found


SECONDS, SPREAD = "gnomon_revision_batch_seconds", "gnomon_revision_batch_spread"
LEARNED_PAGE = f"/metrics?name[]={SECONDS}"
LEARNED_MOST_BYTES = 8 << 20
MOST_BATCH = 1024

_LEARNED_LINES = lines_of(SECONDS, SPREAD)
_SIZE = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Learned:
    """Seconds of batches of 1, 2, …, and their spread."""

    latency_s: tuple[float, ...]
    spread: float = 0.0


def together(curves: Sequence[Learned]) -> Learned | None:
    """What several gateways know of one Revision, as one: the mean for each size that all of them know, the widest spread.

    Example: 0.1, 0.2 and 0.3 s for batches of 1, 2, 3 at one, 0.2 and 0.2 s for 1, 2 at the other: 0.15 and 0.2 s.
    """
    if not curves:
        return None
    rows = zip(*(one.latency_s for one in curves), strict=False)
    return Learned(tuple(sum(row) / len(row) for row in rows), max(one.spread for one in curves))


def learned_to_text(learned: Mapping[FunctionKey, Learned]) -> str:
    """The part of a gateway's page that says so."""
    seconds, spreads = [f"# TYPE {SECONDS} gauge"], [f"# TYPE {SPREAD} gauge"]
    for key, one in learned.items():
        labels = labels_of(key)
        rows = enumerate(one.latency_s, start=1)
        seconds += [f'{SECONDS}{{{labels},batch_size="{size}"}} {latency_s:.6g}' for size, latency_s in rows]
        spreads.append(f"{SPREAD}{{{labels}}} {one.spread:.4g}")
    return "\n".join([*seconds, *spreads, ""])


def learned(page: str) -> dict[FunctionKey, Learned]:
    """By Revision, what a page says; a curve is taken up to the first size that is missing or no time."""
    curves: dict[FunctionKey, dict[int, float]] = {}
    spreads: dict[FunctionKey, float] = {}
    for figure, key, labels, value in read(_LEARNED_LINES, page):
        size = labels.get("batch_size", "0")
        if not 0.0 <= value < float("inf"):
            continue
        if figure == SPREAD:
            spreads[key] = value
        elif value and _SIZE.fullmatch(size) and 1 <= int(size) <= MOST_BATCH:
            curves.setdefault(key, {})[int(size)] = value
    return {key: Learned(_row(curve), spreads.get(key, 0.0)) for key, curve in curves.items() if 1 in curve}


def _row(curve: Mapping[int, float]) -> tuple[float, ...]:
    row: list[float] = []
    while len(row) + 1 in curve:
        row.append(curve[len(row) + 1])
    return tuple(row)


AHEAD_S = 3.0
"""How far the counters go on without news."""
LONGEST_GAP_S = 5.0
"""A second is taken for no more than this many."""
NOISE = 1e-9


class RevisionLoad:
    """Counters of one Revision. Every method takes the time; nothing here reads a clock."""

    def __init__(self, now_s: float, *, keep_s: float = 60.0) -> None:
        self._keep_s = keep_s
        self._pods_at_s = self._waiting_at_s = now_s
        self._concurrency = self._rps = self._waiting = 0.0
        self._pods_s = self._waiting_s = self._arrivals = 0.0
        self._shown_s = self._shown_arrivals = 0.0
        self._last_request_s = 0.0
        self._points: deque[tuple[float, float, float]] = deque()

    def pods(self, now_s: float, all_pods: PodStat) -> None:
        """What all pods together have had in their last second."""
        gap_s = min(LONGEST_GAP_S, max(0.0, now_s - self._pods_at_s))
        self._pods_at_s = now_s
        self._concurrency = all_pods.concurrency
        self._rps = all_pods.rps
        self._pods_s += self._concurrency * gap_s
        self._arrivals += self._rps * gap_s
        if self._concurrency > NOISE or self._rps > NOISE:
            self._last_request_s = now_s
        self._remember(now_s)

    def beside(self, requests: float) -> None:
        """So many requests more have come than pods have counted."""
        self._arrivals += requests

    def waits(self, now_s: float, requests: float) -> bool:
        """So many wait at activators now; whether some do and none did before."""
        first = requests > 0.0 >= self._waiting
        self._waiting_s += self._waiting * min(LONGEST_GAP_S, max(0.0, now_s - self._waiting_at_s))
        self._waiting_at_s = now_s
        self._waiting = requests
        if requests:
            self._last_request_s = now_s
            self._remember(now_s)
        return first

    def counters(self, now_s: float) -> LoadCounters:
        """The counters now. Neither of them ever falls."""
        ahead_s = min(AHEAD_S, max(0.0, now_s - self._pods_at_s))
        waited_s = min(AHEAD_S, max(0.0, now_s - self._waiting_at_s))
        total_s = self._pods_s + self._waiting_s + self._concurrency * ahead_s + self._waiting * waited_s
        self._shown_s = max(self._shown_s, total_s)
        self._shown_arrivals = max(self._shown_arrivals, self._arrivals + self._rps * ahead_s)
        arrivals = round(self._shown_arrivals)
        return LoadCounters(
            arrivals=arrivals,
            successes=arrivals,
            concurrency_s=self._shown_s,
            queued=math.ceil(self._waiting),
            executing=math.ceil(self._concurrency - NOISE),
            last_request_s=self._last_request_s,
        )

    def recent(self, now_s: float, window_s: float, *, by_rps: bool) -> float:
        """The mean load of the last seconds: requests a second, or requests in the system."""
        begin = next((point for point in self._points if point[0] >= now_s - window_s), None)
        if begin is None or not self._points:
            return 0.0
        end = self._points[-1]
        past_s = max(end[0] - begin[0], 1.0)
        return (end[2] - begin[2] if by_rps else end[1] - begin[1]) / max(past_s, min(window_s, now_s - begin[0]))

    def busy(self, now_s: float, window_s: float) -> bool:
        """Whether a request came within the last seconds."""
        return self._last_request_s > 0.0 and now_s - self._last_request_s <= window_s

    def _remember(self, now_s: float) -> None:
        self._points.append((now_s, self._pods_s + self._waiting_s, self._arrivals))
        while self._points and self._points[0][0] < now_s - self._keep_s:
            self._points.popleft()


POD_PERIOD_S = 1.0
AWAKE_PERIOD_S, ASLEEP_PERIOD_S = 0.2, 0.05
"""Between two looks at activators: while every Revision has pods, and while one may have to be woken."""
POD_PATIENCE_S = 0.8
ACTIVATOR_PATIENCE_S = 3.0
BLIND_AFTER_S = 5.0
AS_IT_WAS_S = 3.0
ALL_UP_TO = 3
"""Of so few pods all are asked."""
UNBOUNDED_SAMPLE = 1.96**2 * 100.0 / 5.0**2
"""How many of infinitely many pods are asked: confidence 95 %, variance 100, margin of error 5."""

_LOG = logging.getLogger("gnomon.knative")


def sample_size(pods: int) -> int:
    """How many of a Revision's pods are asked: `populationMeanSampleSize` in Knative's pkg/autoscaler/metrics/sample_size.go."""
    return pods if pods <= ALL_UP_TO else math.ceil(pods * UNBOUNDED_SAMPLE / (pods + UNBOUNDED_SAMPLE - 1.0))


class Scraper:
    """`follow` begins to ask a Revision's pods, which `pods` lists, and `leave` ends it; activators are asked from `start` on.

    `took_stats` is told every second what all pods of a Revision have had, `took_waiting` what waits at all activators.
    `took_beside` is told how many requests more have come than pods have counted. `asleep` is whether some Revision has no pods.
    `gateways` are asked as activators are, and need not be there.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        clock: Clock,
        chance: random.Random,
        *,
        pods: Callable[[FunctionKey], Iterable[RevisionPod]],
        activators: Callable[[], Iterable[RevisionPod]],
        gateways: Callable[[], Iterable[RevisionPod]] = tuple,
        asleep: Callable[[], bool],
        took_stats: Callable[[FunctionKey, PodStat], None],
        took_waiting: Callable[[Mapping[FunctionKey, float]], None],
        took_beside: Callable[[Mapping[FunctionKey, float]], None] = lambda _: None,
    ) -> None:
        self._session, self._clock, self._chance = session, clock, chance
        self._pods, self._activators, self._gateways, self._asleep = pods, activators, gateways, asleep
        self._took_stats, self._took_waiting, self._took_beside = took_stats, took_waiting, took_beside
        self._following: dict[FunctionKey, asyncio.Task[None]] = {}
        self._last: dict[FunctionKey, tuple[float, PodStat]] = {}
        """What the pods of each Revision had, and when one of them told it."""
        self._told: dict[str, tuple[float, Mapping[FunctionKey, float]]] = {}
        """What each activator said last, and when."""
        self._counted: dict[str, Mapping[FunctionKey, float]] = {}
        """What each gateway had counted when it was heard last."""
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._saw_s, self._blind = clock.now_s(), False
        self._tasks = Background()

    def start(self) -> None:
        """Begin to ask activators and gateways."""
        self._tasks.begin(self._every(self._activator_period_s, self._look_at_activators, self._clock.now_s()))

    def follow(self, key: FunctionKey) -> None:
        """Ask a Revision's pods from now on, at a moment of the second of its own: a thousand at once would be a burst."""
        begun_s = self._clock.now_s() - self._chance.random() * POD_PERIOD_S
        looking = self._every(lambda: POD_PERIOD_S, partial(self._look_at_pods, key), begun_s)
        self._following[key] = self._tasks.begin(looking)

    def leave(self, key: FunctionKey) -> None:
        """Ask them no more: the Revision has gone."""
        self._last.pop(key, None)
        self._following.pop(key).cancel()

    async def stop(self) -> None:
        """Ask no more."""
        await self._tasks.end()

    @property
    def seeing(self) -> bool:
        """Whether every activator and gateway that gets requests has told lately what waits in it, and there is an activator."""
        ready, gateways = ([one.name for one in listed() if one.ready and not one.ending] for listed in self._holders)
        return bool(ready) and all(self._heard(name, BLIND_AFTER_S) for name in (*ready, *gateways))

    @property
    def _holders(self) -> tuple[Callable[[], Iterable[RevisionPod]], Callable[[], Iterable[RevisionPod]]]:
        """Who holds requests that wait."""
        return self._activators, self._gateways

    def _heard(self, activator: str, within_s: float) -> bool:
        told = self._told.get(activator)
        return told is not None and self._clock.now_s() - told[0] <= within_s

    def _activator_period_s(self) -> float:
        return ASLEEP_PERIOD_S if self._asleep() else AWAKE_PERIOD_S

    async def _every(self, pause_s: Callable[[], float], look: Callable[[], Awaitable[None]], origin_s: float) -> None:
        while True:
            try:
                await look()
            except Exception:  # noqa: BLE001 - whatever it is, the next look may do better
                _LOG.exception("a look at the load failed")
            period_s = pause_s()
            await self._clock.sleep(period_s - (self._clock.now_s() - origin_s) % period_s)

    async def _look_at_pods(self, key: FunctionKey) -> None:
        """Ask a sample of a Revision's pods. Those that are not ready may hold requests still, or may not have begun."""
        running = [pod for pod in self._pods(key) if pod.running and pod.ip]
        ready, others = [pod for pod in running if pod.ready], [pod for pod in running if not pod.ready]
        of_ready, of_others = await asyncio.gather(self._sample(ready), self._sample(others))
        told = _of_all([one for one in of_ready if one is not None], len(ready))
        more = _of_all([one or PodStat() for one in of_others], len(others))
        now_s = self._clock.now_s()
        if told is not None or not ready:
            self._last[key] = now_s, told or PodStat()
        known_s, known = self._last.get(key, (-math.inf, PodStat()))
        stat = known if now_s - known_s <= AS_IT_WAS_S else PodStat()
        self._took_stats(key, stat if more is None else stat + more)

    async def _sample(self, pods: Sequence[RevisionPod]) -> list[PodStat | None]:
        """What some of them tell; None for one that does not."""
        return await asyncio.gather(*map(self._stat, self._chance.sample(pods, sample_size(len(pods)))))

    async def _stat(self, pod: RevisionPod) -> PodStat | None:
        url = http_url(pod.ip, AUTOSCALING_PORT, WAITING_PAGE)
        data = await asked(self._session, url, most_bytes=WAITING_MOST_BYTES, patience_s=POD_PATIENCE_S)
        if data is None:
            return None
        try:
            return read_stat(data)
        except ValueError as error:
            _LOG.warning("%s/%s tells what cannot be read: %s", pod.namespace, pod.name, error)
            return None

    async def _look_at_activators(self) -> None:
        """Ask each that is not being asked still. One that is ending holds requests until it has ended, and is asked, too."""
        activators = {one.name: one for listed in self._holders for one in listed() if one.running and one.ip}
        gone = self._told.keys() - activators.keys()
        for name in gone:
            del self._told[name]
            self._counted.pop(name, None)
        if gone:
            self._hand_on()
        for name, one in activators.items():
            if name not in self._asking:
                task = self._asking[name] = self._tasks.begin(self._ask(one))
                task.add_done_callback(partial(self._has_asked, name))
        self._say_blind()

    async def _ask(self, activator: RevisionPod) -> None:
        """What waits at one activator; handed on also where it does not say: then what it said before may hold no more."""
        url = http_url(activator.ip, ACTIVATOR_METRICS_PORT, WAITING_PAGE)
        page = await asked(self._session, url, most_bytes=WAITING_MOST_BYTES, patience_s=ACTIVATOR_PATIENCE_S)
        if page is not None:
            text = page.decode("utf-8", "replace")
            self._told[activator.name] = self._clock.now_s(), waiting(text)
            self._count(activator.name, beside(text))
        self._hand_on()

    def _count(self, name: str, counts: Mapping[FunctionKey, float]) -> None:
        """Hand on what a gateway has counted since it was heard last; what it had counted before that is nobody's news."""
        before, self._counted[name] = self._counted.get(name), counts
        if before is not None and counts:
            # One that counts from nothing again has been restarted.
            since = {
                key: count - before.get(key, 0.0) if count >= before.get(key, 0.0) else count for key, count in counts.items()
            }
            self._took_beside({key: count for key, count in since.items() if count})

    def _hand_on(self) -> None:
        total: dict[FunctionKey, float] = {}
        for name, (_, told) in self._told.items():
            if self._heard(name, AS_IT_WAS_S):
                for key, requests in told.items():
                    total[key] = total.get(key, 0.0) + requests
        self._took_waiting(total)

    def _has_asked(self, name: str, _: asyncio.Task[None]) -> None:
        del self._asking[name]

    def _say_blind(self) -> None:
        """Once it has lasted: an activator that is new, or has not been asked yet, is no trouble."""
        now_s = self._clock.now_s()
        if self.seeing:
            self._saw_s, self._blind = now_s, False
        elif not self._blind and now_s - self._saw_s > AS_IT_WAS_S:
            self._blind = True
            _LOG.warning(
                "activators do not tell what waits at them: nothing is scaled to zero until they do. Where that lasts, set "
                "metrics-protocol: prometheus in config-observability and restart the activator."
            )


def _of_all(told: Sequence[PodStat], pods: int) -> PodStat | None:
    """What so many pods have together, by some of them; None where none has told."""
    return sum(told, PodStat()) * (pods / len(told)) if told else None


PERIOD_S = 5.0
PATIENCE_S = 3.0
FEWER_AFTER_S = 60.0
"""As long as one that ends may answer what it has."""


class Gateways:
    """The ready ones of `pods`, and what they know. `start` needs a session."""

    def __init__(self, pods: Callable[[], Iterable[RevisionPod]], clock: Clock) -> None:
        self._pods, self._clock = pods, clock
        self._told: dict[str, dict[FunctionKey, Learned]] = {}
        """By gateway."""
        self._queues, self._fewer_since_s = 1, clock.now_s()
        self._task: asyncio.Task[None] | None = None

    @property
    def queues(self) -> int:
        """In how many queues a Revision's requests wait, or waited a moment ago: one, where no gateway is."""
        now_s, count = self._clock.now_s(), max(1, len(self._ready()))
        if count >= self._queues or now_s - self._fewer_since_s >= FEWER_AFTER_S:
            self._queues, self._fewer_since_s = count, now_s
        return self._queues

    def learned(self, key: FunctionKey) -> Learned | None:
        """How long a Revision's batches take; None where no gateway knows."""
        return together([told[key] for told in self._told.values() if key in told])

    def start(self, session: aiohttp.ClientSession) -> None:
        """Begin to ask."""
        self._task = asyncio.get_running_loop().create_task(self._run(session))

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, session: aiohttp.ClientSession) -> None:
        while True:
            try:
                await self._look(session)
            except Exception:  # noqa: BLE001 - whatever it is, the next look may do better
                _LOG.exception("what gateways have learned could not be taken in")
            await self._clock.sleep(PERIOD_S)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        ready = self._ready()
        pages = await asyncio.gather(*(self._page(session, pod) for pod in ready))
        for pod, page in zip(ready, pages, strict=True):
            if page is not None:
                self._told[pod.name] = learned(page.decode("utf-8", "replace"))
        there = {pod.name for pod in self._pods()}
        self._told = {name: told for name, told in self._told.items() if name in there}

    @staticmethod
    async def _page(session: aiohttp.ClientSession, pod: RevisionPod) -> bytes | None:
        url = http_url(pod.ip, ACTIVATOR_METRICS_PORT, LEARNED_PAGE)
        return await asked(session, url, most_bytes=LEARNED_MOST_BYTES, patience_s=PATIENCE_S)

    def _ready(self) -> list[RevisionPod]:
        return [pod for pod in self._pods() if pod.ready and not pod.ending and pod.ip]
