"""Metrics of Revisions: scraped from queue-proxies, activators and gateways, and accumulated to the counters of policies.

`PodStat`: the last second of a pod, from queue-proxy's port 9090: a protobuf message `Stat` of
`pkg/autoscaler/metrics/stat.proto`. Requests that came through an activator are in both numbers (and once more in separate
fields, which are not read), so the path of a request makes no difference.

Prometheus pages have lines such as `FIGURE{k8s_namespace_name="users",kn_revision_name="f-00001",…} 3`. Pages are not trusted:
malformed lines are skipped, and the length of labels is bounded, because a page with many unclosed braces would otherwise be
scanned once for each of them.

`waiting`: the number of requests that wait at an activator or in our gateway, by the gauge `kn_revision_request_queued`. The page
exists while `metrics-protocol` is `prometheus` in `config-observability`. The gauge rises when a request arrives and falls when a
pod takes it, so every scrape shows the requests that wait at that time.

The gateway reports, by the same gauge on the same page, all requests that it holds and no pod counts: queue-proxy counts a batch
as one request, so for a batch of eight in execution the gateway reports seven. A second metric, a counter, reports the requests
that were sent in batches beyond the first of each batch: arrivals that queue-proxies have not counted.

A scrape asks for one metric only. The whole page has several histograms for each Revision: 0.5 MB with ten Revisions, which
costs the activator 6 ms and us 2 ms each time, against 2 and 0.3 ms for one metric. A server that ignores the filter sends all.

`ObservedLatency`: the latency of batches as a gateway has measured it, by Revision and batch size, and its spread:

    gnomon_revision_batch_seconds{k8s_namespace_name="default",kn_revision_name="classify-00001",batch_size="4"} 0.081
    gnomon_revision_batch_spread{k8s_namespace_name="default",kn_revision_name="classify-00001"} 0.05

The spread is the recent deviation of batches' latency from its prediction, as a share of the prediction. Buffer plans (`batch`)
and policies that compute an instance's capacity (`od`, `lv`, `mark`, `target-tracking`) use both.

`RevisionLoad`: one Revision's load as cumulative counters. A pod reports means of its last second, so a second without a scrape
is lost: it is assumed to equal the scraped one. The number of waiting requests is assumed to hold until the next scrape. Between
scrapes the counters are extrapolated; if they have risen too far, they stand still until the measured values have caught up, so
policies see a steady line, and nothing is counted twice. Requests in pods and waiting requests are added: a request leaves the
activator's queue when a pod takes it.

`Scraper`: scrapes pods every second and activators five or twenty times a second. Each Revision has its own task: its load is
delivered as soon as its own pods have answered. Of many pods a random sample is scraped, as large as that of Knative's
autoscaler, and extrapolated to all: this also bounds the cost of one Revision.

A request to a Revision without pods waits at an activator until the next scrape: 0.025 s on average, as activators are scraped
more often while any Revision has no pods. Each activator is scraped on its own, and its result is used at once, with the others'
last results: an activator on a dead node, whose connection times out after three seconds, delays no other. A ready pod without an
answer counts as the mean of the Revision's others; if no pod, or an activator, answers, its last values hold for a short time. If
activators have not answered for longer, waiting requests cannot be seen, and `observing` is false.

`fetch` reads a page of a user's pod, which is not trusted: no more than a page's length is read, nothing is decompressed, and no
redirection is followed. An endless answer, or a small one that decompresses to gigabytes, would end the whole autoscaler.

`Gateways`: scrapes the batch latencies of each gateway every few seconds.

    each ready gateway ▶ its page ▶ seconds of batches of 1, 2, … and their spread ▶ one curve for each Revision

The number of gateways matters as well: each has its own queue for the requests that the ingress sends to it, so plans are made
for the arrivals at one queue. A new gateway counts at once, a missing one only after a while: a plan for too few queues overloads
pods, a plan for too many is cautious, and plans are stable while gateways are replaced one by one. A gateway that does not answer
keeps its last values until its pod is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from gnomon_platforms.knative.resources import ACTIVATOR_METRICS_PORT, AUTOSCALING_PORT

if TYPE_CHECKING:
    import aiohttp


PLAIN = "identity"
_OK = 200


async def fetch(
    session: aiohttp.ClientSession, url: str, *, most_bytes: int, timeout_s: float, headers: Mapping[str, str] | None = None
) -> bytes | None:
    """Fetch a page; None for a status other than 200, more than `most_bytes`, or a timeout after `timeout_s`."""
    import aiohttp  # noqa: PLC0415 - comes with the session

    with contextlib.suppress(aiohttp.ClientError, OSError, ValueError):
        async with session.get(
            url,
            headers={"Accept-Encoding": PLAIN, **(headers or {})},
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            allow_redirects=False,
            auto_decompress=False,
        ) as answer:
            if answer.status == _OK and answer.headers.get("Content-Encoding", PLAIN) == PLAIN:
                return await _read_up_to(answer.content, most_bytes)
    return None


async def _read_up_to(content: aiohttp.StreamReader, most_bytes: int) -> bytes | None:
    """Read a body; None as soon as it exceeds `most_bytes`: leaving the answer then closes the connection."""
    data = bytearray()
    async for part in content.iter_any():
        data += part
        if len(data) > most_bytes:
            return None
    return bytes(data)


PAGE = "/metrics"
MOST_BYTES = 4096
"""The largest `Stat` message that is read: a pod's name has 253 bytes at most, and all other fields 50."""
MOST = 1e6
"""The largest plausible number of requests in a pod, or per second."""


@dataclass(frozen=True, slots=True)
class PodStat:
    """The last second of one or several pods: the mean number of requests in them, and the arrivals."""

    concurrency: float = 0.0
    rps: float = 0.0

    def __add__(self, other: PodStat) -> PodStat:
        return PodStat(self.concurrency + other.concurrency, self.rps + other.rps)

    def __mul__(self, pods: float) -> PodStat:
        return PodStat(self.concurrency * pods, self.rps * pods)


def read_stat(data: bytes) -> PodStat:
    """Parse a `Stat` message.

    Raises ValueError for an invalid message.
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
    """Yield the metric, the Revision, all labels and the value of each line that names a Revision."""
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
UNCOUNTED = "gnomon_revision_requests_beside_total"
WAITING_PAGE = f"/metrics?name[]={FIGURE}"
WAITING_MOST_BYTES = 8 << 20
"""The largest page that is read: 40,000 Revisions at about 200 bytes a line; 160 if a server sends all its metrics."""

_LINES = {figure: lines_of(figure) for figure in (FIGURE, UNCOUNTED)}


def waiting_to_text(counts: Mapping[FunctionKey, int], uncounted: Mapping[FunctionKey, int]) -> str:
    """A gateway's page in the activators' format: requests that no pod reports now, and arrivals that no pod has counted."""
    return _lines(FIGURE, "gauge", counts) + _lines(UNCOUNTED, "counter", uncounted)


def waiting(page: str) -> dict[FunctionKey, float]:
    """The number of waiting requests by Revision; zeros are omitted."""
    return _read(FIGURE, page)


def uncounted(page: str) -> dict[FunctionKey, float]:
    """The requests that no pod has counted since the gateway's start, by Revision."""
    return _read(UNCOUNTED, page)


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
LATENCY_PAGE = f"/metrics?name[]={SECONDS}"
LATENCY_MOST_BYTES = 8 << 20
MOST_BATCH = 1024

_LATENCY_LINES = lines_of(SECONDS, SPREAD)
_SIZE = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class ObservedLatency:
    """Measured latencies of batches of 1, 2, … in seconds, and their spread."""

    latency_s: tuple[float, ...]
    spread: float = 0.0


def merge_curves(curves: Sequence[ObservedLatency]) -> ObservedLatency | None:
    """Merge several gateways' curves of one Revision: the mean for each size that all have measured, and the largest spread.

    Example: 0.1, 0.2 and 0.3 s for batches of 1, 2, 3 at one, 0.2 and 0.2 s for 1, 2 at the other: 0.15 and 0.2 s.
    """
    if not curves:
        return None
    rows = zip(*(curve.latency_s for curve in curves), strict=False)
    return ObservedLatency(tuple(sum(row) / len(row) for row in rows), max(curve.spread for curve in curves))


def latency_to_text(latencies: Mapping[FunctionKey, ObservedLatency]) -> str:
    """The part of a gateway's page with its measured batch latencies."""
    seconds, spreads = [f"# TYPE {SECONDS} gauge"], [f"# TYPE {SPREAD} gauge"]
    for key, latency in latencies.items():
        labels = labels_of(key)
        rows = enumerate(latency.latency_s, start=1)
        seconds += [f'{SECONDS}{{{labels},batch_size="{size}"}} {latency_s:.6g}' for size, latency_s in rows]
        spreads.append(f"{SPREAD}{{{labels}}} {latency.spread:.4g}")
    return "\n".join([*seconds, *spreads, ""])


def latency_from_text(page: str) -> dict[FunctionKey, ObservedLatency]:
    """Parse the batch latencies of a page, by Revision; a curve ends before the first size that is missing or invalid."""
    curves: dict[FunctionKey, dict[int, float]] = {}
    spreads: dict[FunctionKey, float] = {}
    for figure, key, labels, value in read(_LATENCY_LINES, page):
        size = labels.get("batch_size", "0")
        if not 0.0 <= value < float("inf"):
            continue
        if figure == SPREAD:
            spreads[key] = value
        elif value and _SIZE.fullmatch(size) and 1 <= int(size) <= MOST_BATCH:
            curves.setdefault(key, {})[int(size)] = value
    return {key: ObservedLatency(_row(curve), spreads.get(key, 0.0)) for key, curve in curves.items() if 1 in curve}


def _row(curve: Mapping[int, float]) -> tuple[float, ...]:
    row: list[float] = []
    while len(row) + 1 in curve:
        row.append(curve[len(row) + 1])
    return tuple(row)


EXTRAPOLATION_S = 3.0
"""Seconds for which the counters are extrapolated without a new scrape."""
LONGEST_GAP_S = 5.0
"""The longest gap between scrapes for which the last values are assumed."""
NOISE = 1e-9


class RevisionLoad:
    """Load counters of one Revision. Methods take the time as an argument; nothing here reads a clock."""

    def __init__(self, now_s: float, *, keep_s: float = 60.0) -> None:
        self._keep_s = keep_s
        self._pods_at_s = self._waiting_at_s = now_s
        self._concurrency = self._rps = self._waiting = 0.0
        self._pods_s = self._waiting_s = self._arrivals = 0.0
        self._shown_s = self._shown_arrivals = 0.0
        self._last_request_s = 0.0
        self._points: deque[tuple[float, float, float]] = deque()

    def pods(self, now_s: float, all_pods: PodStat) -> None:
        """Add the last second's statistics of all pods together."""
        gap_s = min(LONGEST_GAP_S, max(0.0, now_s - self._pods_at_s))
        self._pods_at_s = now_s
        self._concurrency = all_pods.concurrency
        self._rps = all_pods.rps
        self._pods_s += self._concurrency * gap_s
        self._arrivals += self._rps * gap_s
        if self._concurrency > NOISE or self._rps > NOISE:
            self._last_request_s = now_s
        self._remember(now_s)

    def add_uncounted(self, requests: float) -> None:
        """Add arrivals that pods have not counted."""
        self._arrivals += requests

    def waits(self, now_s: float, requests: float) -> bool:
        """Set the number of waiting requests. Returns whether it has become positive."""
        first = requests > 0.0 >= self._waiting
        self._waiting_s += self._waiting * min(LONGEST_GAP_S, max(0.0, now_s - self._waiting_at_s))
        self._waiting_at_s = now_s
        self._waiting = requests
        if requests:
            self._last_request_s = now_s
            self._remember(now_s)
        return first

    def counters(self, now_s: float) -> LoadCounters:
        """The counters at this time; cumulative ones never fall."""
        ahead_s = min(EXTRAPOLATION_S, max(0.0, now_s - self._pods_at_s))
        waited_s = min(EXTRAPOLATION_S, max(0.0, now_s - self._waiting_at_s))
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
        """True if a request came within the last seconds."""
        return self._last_request_s > 0.0 and now_s - self._last_request_s <= window_s

    def _remember(self, now_s: float) -> None:
        self._points.append((now_s, self._pods_s + self._waiting_s, self._arrivals))
        while self._points and self._points[0][0] < now_s - self._keep_s:
            self._points.popleft()


POD_PERIOD_S = 1.0
AWAKE_PERIOD_S, ASLEEP_PERIOD_S = 0.2, 0.05
"""Periods of activators' scrapes: while every Revision has pods, and while one without pods may have to be woken."""
POD_TIMEOUT_S = 0.8
ACTIVATOR_TIMEOUT_S = 3.0
BLIND_AFTER_S = 5.0
"""Seconds without an activator's answer after which waiting requests count as unobserved, and no Revision scales to zero."""
LAST_VALUES_S = 3.0
"""Seconds for which the last values are used for a pod or an activator that does not answer."""
ALL_UP_TO = 3
"""The number of a Revision's pods up to which all are scraped; of more pods, a sample."""
UNBOUNDED_SAMPLE = 1.96**2 * 100.0 / 5.0**2
"""The sample size for infinitely many pods: confidence 95 %, variance 100, margin of error 5."""

_LOG = logging.getLogger("gnomon.knative")


def sample_size(pods: int) -> int:
    """The number of pods to scrape: `populationMeanSampleSize` in Knative's pkg/autoscaler/metrics/sample_size.go."""
    return pods if pods <= ALL_UP_TO else math.ceil(pods * UNBOUNDED_SAMPLE / (pods + UNBOUNDED_SAMPLE - 1.0))


class Scraper:
    """Scrapes pods, activators and gateways. `follow` begins with a Revision's pods, which `pods` lists; `leave` ends that.

    `on_stats` gets the statistics of all pods of a Revision every second, `on_waiting` the requests that wait at all
    activators and gateways, `on_uncounted` arrivals that no pod has counted. `asleep` is whether any Revision has no pods.
    `gateways` are scraped like activators, and are optional.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        clock: Clock,
        rng: random.Random,
        *,
        pods: Callable[[FunctionKey], Iterable[RevisionPod]],
        activators: Callable[[], Iterable[RevisionPod]],
        gateways: Callable[[], Iterable[RevisionPod]] = tuple,
        asleep: Callable[[], bool],
        on_stats: Callable[[FunctionKey, PodStat], None],
        on_waiting: Callable[[Mapping[FunctionKey, float]], None],
        on_uncounted: Callable[[Mapping[FunctionKey, float]], None] = lambda _: None,
    ) -> None:
        self._session, self._clock, self._rng = session, clock, rng
        self._pods, self._activators, self._gateways, self._asleep = pods, activators, gateways, asleep
        self._on_stats, self._on_waiting, self._on_uncounted = on_stats, on_waiting, on_uncounted
        self._following: dict[FunctionKey, asyncio.Task[None]] = {}
        self._last: dict[FunctionKey, tuple[float, PodStat]] = {}
        """The time and the sum of the last statistics of each Revision's pods."""
        self._last_answers: dict[str, tuple[float, Mapping[FunctionKey, float]]] = {}
        """The time and content of the last answer of each activator and gateway."""
        self._counted: dict[str, Mapping[FunctionKey, float]] = {}
        """The counters in each gateway's last answer."""
        self._scrapes: dict[str, asyncio.Task[None]] = {}
        self._observed_s, self._blind = clock.now_s(), False
        self._tasks = Background()

    def start(self) -> None:
        """Begin to scrape activators and gateways."""
        self._tasks.begin(self._every(self._activator_period_s, self._scrape_activators, self._clock.now_s()))

    def follow(self, key: FunctionKey) -> None:
        """Scrape a Revision's pods every second, with a random phase: a thousand Revisions at once would be a burst."""
        origin_s = self._clock.now_s() - self._rng.random() * POD_PERIOD_S
        looking = self._every(lambda: POD_PERIOD_S, partial(self._scrape_pods, key), origin_s)
        self._following[key] = self._tasks.begin(looking)

    def leave(self, key: FunctionKey) -> None:
        """Stop scraping the pods of a removed Revision."""
        self._last.pop(key, None)
        self._following.pop(key).cancel()

    async def stop(self) -> None:
        """Stop scraping."""
        await self._tasks.end()

    @property
    def observing(self) -> bool:
        """True if there is a ready activator, and every ready activator and gateway has answered recently."""
        ready, gateways = ([pod.name for pod in listed() if pod.ready and not pod.ending] for listed in self._holders)
        return bool(ready) and all(self._answered_within(name, BLIND_AFTER_S) for name in (*ready, *gateways))

    @property
    def _holders(self) -> tuple[Callable[[], Iterable[RevisionPod]], Callable[[], Iterable[RevisionPod]]]:
        """The lists of pods that hold waiting requests: activators and gateways."""
        return self._activators, self._gateways

    def _answered_within(self, activator: str, within_s: float) -> bool:
        answer = self._last_answers.get(activator)
        return answer is not None and self._clock.now_s() - answer[0] <= within_s

    def _activator_period_s(self) -> float:
        return ASLEEP_PERIOD_S if self._asleep() else AWAKE_PERIOD_S

    async def _every(self, pause_s: Callable[[], float], look: Callable[[], Awaitable[None]], origin_s: float) -> None:
        while True:
            try:
                await look()
            except Exception:  # noqa: BLE001 - whatever it is, the next look may do better
                _LOG.exception("Internal error while scraping metrics of pods and activators")
            period_s = pause_s()
            await self._clock.sleep(period_s - (self._clock.now_s() - origin_s) % period_s)

    async def _scrape_pods(self, key: FunctionKey) -> None:
        """Scrape a sample of a Revision's pods. Pods that are not ready may still hold requests, or may not have started."""
        running = [pod for pod in self._pods(key) if pod.running and pod.ip]
        # Sampled apart: a pod that starts has no load yet, and would lower the mean that is extrapolated to the ready ones.
        ready, others = [pod for pod in running if pod.ready], [pod for pod in running if not pod.ready]
        of_ready, of_others = await asyncio.gather(self._sample(ready), self._sample(others))
        ready_stat = _extrapolate([stat for stat in of_ready if stat is not None], len(ready))
        others_stat = _extrapolate([stat or PodStat() for stat in of_others], len(others))
        now_s = self._clock.now_s()
        if ready_stat is not None or not ready:
            self._last[key] = now_s, ready_stat or PodStat()
        last_s, last = self._last.get(key, (-math.inf, PodStat()))
        stat = last if now_s - last_s <= LAST_VALUES_S else PodStat()
        self._on_stats(key, stat if others_stat is None else stat + others_stat)

    async def _sample(self, pods: Sequence[RevisionPod]) -> list[PodStat | None]:
        """The statistics of a random sample of pods; None for a pod without an answer."""
        return await asyncio.gather(*map(self._stat, self._rng.sample(pods, sample_size(len(pods)))))

    async def _stat(self, pod: RevisionPod) -> PodStat | None:
        url = http_url(pod.ip, AUTOSCALING_PORT, WAITING_PAGE)
        data = await fetch(self._session, url, most_bytes=WAITING_MOST_BYTES, timeout_s=POD_TIMEOUT_S)
        if data is None:
            return None
        try:
            return read_stat(data)
        except ValueError as error:
            _LOG.warning("the metrics of pod %s/%s cannot be parsed: %s", pod.namespace, pod.name, error)
            return None

    async def _scrape_activators(self) -> None:
        """Scrape activators and gateways without a scrape in flight. A terminating one may hold requests, so it is included."""
        activators = {pod.name: pod for listed in self._holders for pod in listed() if pod.running and pod.ip}
        gone = self._last_answers.keys() - activators.keys()
        for name in gone:
            del self._last_answers[name]
            self._counted.pop(name, None)
        if gone:
            self._publish_waiting()
        for name, pod in activators.items():
            if name not in self._scrapes:
                task = self._scrapes[name] = self._tasks.begin(self._scrape_activator(pod))
                task.add_done_callback(partial(self._scraped, name))
        self._warn_if_blind()

    async def _scrape_activator(self, activator: RevisionPod) -> None:
        """Scrape one activator or gateway. Totals are passed on also without an answer, as an old one may have expired."""
        url = http_url(activator.ip, ACTIVATOR_METRICS_PORT, WAITING_PAGE)
        page = await fetch(self._session, url, most_bytes=WAITING_MOST_BYTES, timeout_s=ACTIVATOR_TIMEOUT_S)
        if page is not None:
            text = page.decode("utf-8", "replace")
            self._last_answers[activator.name] = self._clock.now_s(), waiting(text)
            self._count(activator.name, uncounted(text))
        self._publish_waiting()

    def _count(self, name: str, counts: Mapping[FunctionKey, float]) -> None:
        """Pass on the increase of a gateway's counters since its last answer; a first answer is only the baseline."""
        before, self._counted[name] = self._counted.get(name), counts
        if before is not None and counts:
            # A counter that has fallen was reset by a restart: its whole value is new.
            since = {
                key: count - before.get(key, 0.0) if count >= before.get(key, 0.0) else count for key, count in counts.items()
            }
            self._on_uncounted({key: count for key, count in since.items() if count})

    def _publish_waiting(self) -> None:
        total: dict[FunctionKey, float] = {}
        for name, (_, answer) in self._last_answers.items():
            if self._answered_within(name, LAST_VALUES_S):
                for key, requests in answer.items():
                    total[key] = total.get(key, 0.0) + requests
        self._on_waiting(total)

    def _scraped(self, name: str, _: asyncio.Task[None]) -> None:
        del self._scrapes[name]

    def _warn_if_blind(self) -> None:
        """Log a warning once `observing` has been false for a while: a new activator alone is no failure."""
        now_s = self._clock.now_s()
        if self.observing:
            self._observed_s, self._blind = now_s, False
        elif not self._blind and now_s - self._observed_s > LAST_VALUES_S:
            self._blind = True
            _LOG.warning(
                "activators do not report waiting requests: nothing is scaled to zero until they do. If that lasts, set "
                "metrics-protocol: prometheus in config-observability and restart the activator."
            )


def _extrapolate(sample: Sequence[PodStat], pods: int) -> PodStat | None:
    """Extrapolate a sample's statistics to this number of pods; None for an empty sample."""
    return sum(sample, PodStat()) * (pods / len(sample)) if sample else None


PERIOD_S = 5.0
TIMEOUT_S = 3.0
FEWER_AFTER_S = 60.0
"""Seconds after which a smaller number of gateways counts: a terminating one may take as long to answer its requests."""


class Gateways:
    """The ready gateways among `pods`, and their measured batch latencies."""

    def __init__(self, pods: Callable[[], Iterable[RevisionPod]], clock: Clock) -> None:
        self._pods, self._clock = pods, clock
        self._last_answers: dict[str, dict[FunctionKey, ObservedLatency]] = {}
        """The batch latencies in each gateway's last answer, by gateway and Revision."""
        self._queues, self._fewer_since_s = 1, clock.now_s()
        self._task: asyncio.Task[None] | None = None

    @property
    def queues(self) -> int:
        """The number of queues of a Revision: that of ready gateways, now or recently; 1 without a gateway."""
        now_s, count = self._clock.now_s(), max(1, len(self._ready()))
        if count >= self._queues or now_s - self._fewer_since_s >= FEWER_AFTER_S:
            self._queues, self._fewer_since_s = count, now_s
        return self._queues

    def observed_latency(self, key: FunctionKey) -> ObservedLatency | None:
        """The measured latencies of a Revision's batches; None if no gateway has any."""
        return merge_curves([latencies[key] for latencies in self._last_answers.values() if key in latencies])

    def start(self, session: aiohttp.ClientSession) -> None:
        """Start to scrape the gateways."""
        self._task = asyncio.get_running_loop().create_task(self._run(session))

    async def stop(self) -> None:
        """Stop scraping."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, session: aiohttp.ClientSession) -> None:
        while True:
            try:
                await self._look(session)
            except Exception:  # noqa: BLE001 - whatever it is, the next look may do better
                _LOG.exception("Internal error while reading the gateways' measured latencies")
            await self._clock.sleep(PERIOD_S)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        ready = self._ready()
        pages = await asyncio.gather(*(self._page(session, pod) for pod in ready))
        for pod, page in zip(ready, pages, strict=True):
            if page is not None:
                self._last_answers[pod.name] = latency_from_text(page.decode("utf-8", "replace"))
        # Keyed by pod, not by readiness: a gateway that is briefly unready keeps its last latencies.
        existing = {pod.name for pod in self._pods()}
        self._last_answers = {name: latencies for name, latencies in self._last_answers.items() if name in existing}

    @staticmethod
    async def _page(session: aiohttp.ClientSession, pod: RevisionPod) -> bytes | None:
        url = http_url(pod.ip, ACTIVATOR_METRICS_PORT, LATENCY_PAGE)
        return await fetch(session, url, most_bytes=LATENCY_MOST_BYTES, timeout_s=TIMEOUT_S)

    def _ready(self) -> list[RevisionPod]:
        return [pod for pod in self._pods() if pod.ready and not pod.ending and pod.ip]
