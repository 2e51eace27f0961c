"""Tests whether every request has one right end while processes are killed at random, and how many find no instance.

    python -m benchmarks.reliability.chaos [--minutes 30] [--faults 400] [--deadline-ms 30000] [--quick]

`gnomon serve` with a model and a handler of two instances each, under callers that send one request after another. At random
moments an instance, all zygotes, the coordinator, the supervisor or the gateway is killed (SIGKILL), or an instance is frozen
(SIGSTOP); a gateway is started again at once, on the same state and port.

The history is checked: an answer that is not its request's own is wrong, a handler's request that was executed twice is doubled.
An outage is the time from a fault to the first answer to a request that was sent after the fault, at the slower function. Faults
do not overlap: the next one strikes when both functions have answered again. `--faults` is therefore an upper bound. Shares count
every attempt, also those for which the gateway was not there to connect to.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import itertools
import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks import gnomon
from benchmarks.programs import Program, ended_well, free_port, pace_of, pace_parser, step
from benchmarks.reliability._clients import NO_CONNECTION, Outcome, Request, closed_loop
from benchmarks.reliability._processes import descendants, process_name
from benchmarks.report import Figure, measured, write
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository

MODEL, HANDLER = "model", "ledger"
INSTANCES = 2
CALLERS = 4
PAUSE_S = 0.02
SEED = 18
INPUTS = 64
CLOSE = 1e-4
KINDS = {"instance": 35, "frozen": 10, "zygote": 20, "coordinator": 10, "supervisor": 15, "gateway": 10}
"""Faults and how often each is chosen."""
REFUSED_AT_MOST = 0.01
RECOVERS_S = 90.0
"""A fault whose outage lasts longer counts as one of this length, and the next one strikes."""
NO_INSTANCE = "503 no_instance"


@dataclass(slots=True)
class History:
    """The requests that were sent, how they ended, and which were executed. Times are in seconds on the monotonic clock."""

    executed: Counter[str] = field(default_factory=Counter)
    """Executions of a handler's request."""
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of attempts by function and outcome."""
    wrong: list[str] = field(default_factory=list)
    answered: dict[str, float] = field(default_factory=dict)
    """The time at which the youngest answered request of each function was sent."""
    outages: dict[str, list[float]] = field(default_factory=dict)
    """The seconds of each outage, by kind of fault."""
    duration_s: float = 0.0

    def record(self, function: str, request: Request, outcome: Outcome, is_right: Callable[[Request, bytes], bool]) -> None:
        """Count an attempt, and check its answer."""
        end = end_of(outcome)
        self.ends[function, end] += 1
        if end == "200":
            self.answered[function] = max(outcome.sent_s, self.answered.get(function, 0.0))
            if not is_right(request, outcome.body):
                self.wrong.append(f"{outcome.body!r} in place of {request.expected!r}")

    @property
    def doubled(self) -> list[str]:
        return [token for token, times in self.executed.items() if times > 1]

    @property
    def attempts(self) -> int:
        return self.ends.total()

    @property
    def faults(self) -> int:
        return sum(map(len, self.outages.values()))

    def share(self, end: str, function: str = "") -> float:
        """The share of all attempts, or of those at one function, that ended so."""
        of = [(count, its) for (name, its), count in self.ends.items() if function in ("", name)]
        return sum(count for count, its in of if its == end) / max(1, sum(count for count, _ in of))

    def recovered(self, since_s: float) -> bool:
        """Return whether each function has answered a request that was sent since then."""
        return all(self.answered.get(function, 0.0) >= since_s for function in (MODEL, HANDLER))


class Serving:
    """`gnomon serve` on one state folder and port, through its ends."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self.program = self._program()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _program(self) -> Program:
        options = ["--port", str(self.port), "--state", str(self.folder / "state"), "--models", str(self.folder / "models")]
        return Program([gnomon.COMMAND, "serve", *options, "--cores", "8"], self.folder, {})

    def ready(self) -> gnomon.Gnomon:
        self.program.wait_ready(f"{self.url}/healthz")
        return gnomon.Gnomon(f"127.0.0.1:{self.port}", self.folder / "state", self.program)

    def again(self) -> None:
        """Kill the gateway, and start another."""
        self.program.process.kill()
        self.program.process.wait()
        self.program = self._program()

    def named(self, *names: str) -> list[int]:
        """Processes below the gateway whose names begin so."""
        return [pid for pid in descendants(self.program.process.pid) if process_name(pid).startswith(names)]


def network() -> torch.nn.Module:
    torch.manual_seed(SEED)
    first, second = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)
    return torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.Flatten(), torch.nn.Linear(1152, 5)).eval()


def questions(module: torch.nn.Module) -> list[tuple[bytes, list[float]]]:
    """Requests to the model, each with its answer."""
    made = []
    with torch.no_grad():
        for value in range(1, INPUTS + 1):
            rows = torch.full((1, 3, 16, 16), float(value))
            tensor = {"name": "input", "shape": [1, 3, 16, 16], "datatype": "FP32", "data": rows.flatten().tolist()}
            made.append((json.dumps({"inputs": [tensor]}).encode(), module(rows)[0].tolist()))
    return made


def model_requests(stop: asyncio.Event, answers: Sequence[tuple[bytes, list[float]]]) -> Iterator[Request]:
    """The questions in turn until `stop`, each with its answer."""
    for body, expected in itertools.cycle(answers):
        if stop.is_set():
            return
        yield Request(f"/v2/models/{MODEL}/infer", body, expected)


def handler_requests(stop: asyncio.Event) -> Iterator[Request]:
    """Requests with a token each until `stop`; the handler answers with the token."""
    for number in itertools.count():
        if stop.is_set():
            return
        token = f"r{number}".encode()
        yield Request(f"/function/{HANDLER}", token, token)


def is_model_answer(request: Request, body: bytes) -> bool:
    data, expected = json.loads(body)["outputs"][0]["data"], request.expected
    scale = max(map(abs, expected))
    return len(data) == len(expected) and all(abs(a - b) <= CLOSE * scale for a, b in zip(data, expected, strict=True))


def is_handler_answer(request: Request, body: bytes) -> bool:
    return bool(body == request.expected)


def end_of(outcome: Outcome) -> str:
    """The outcome of an attempt: the status, with the code of a gateway's error; or the reason why there was no answer."""
    if outcome.status == http.HTTPStatus.OK or outcome.failure:
        return outcome.failure or "200"
    text = outcome.body.decode(errors="replace")
    if "No instance of the function became ready" in text:
        return NO_INSTANCE
    with contextlib.suppress(ValueError, KeyError, TypeError):
        error = json.loads(text)["error"]
        return f"{outcome.status} {error['code'] if isinstance(error, dict) else error[:60]}"
    return str(outcome.status)


async def callers(
    serving: Serving, history: History, stop: asyncio.Event, deadline_ms: float, answers: Sequence[tuple[bytes, list[float]]]
) -> None:
    """Send requests to both functions until `stop`, and record each attempt."""
    headers = {"X-Gnomon-Deadline-Ms": str(deadline_ms)}

    def recorder(function: str, is_right: Callable[[Request, bytes], bool]) -> Callable[[Request, Outcome], None]:
        return lambda request, outcome: history.record(function, request, outcome, is_right)

    async with asyncio.TaskGroup() as tasks:
        for function, requests, is_right in (
            (MODEL, model_requests(stop, answers), is_model_answer),
            (HANDLER, handler_requests(stop), is_handler_answer),
        ):
            record = recorder(function, is_right)
            tasks.create_task(closed_loop(serving.url, CALLERS, requests, record, headers=headers, pause_s=PAUSE_S))


async def faults(serving: Serving, history: History, duration_s: float, count: int) -> None:
    """Kill a random process at random times, each after the outage of the one before."""
    rng = random.Random(SEED)
    begun_s = time.monotonic()
    for moment in sorted(rng.uniform(0.0, duration_s) for _ in range(count)):
        await asyncio.sleep(max(0.0, begun_s + moment - time.monotonic()))
        at_s = time.monotonic()
        if at_s >= begun_s + duration_s:
            break
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        if await asyncio.to_thread(strike, serving, kind, rng):
            while not history.recovered(at_s) and time.monotonic() < at_s + RECOVERS_S:  # noqa: ASYNC110 - answers are no event
                await asyncio.sleep(PAUSE_S / 4)
            history.outages.setdefault(kind, []).append(time.monotonic() - at_s)
    await asyncio.sleep(max(0.0, begun_s + duration_s - time.monotonic()))
    history.duration_s = time.monotonic() - begun_s


def strike(serving: Serving, kind: str, rng: random.Random) -> bool:
    """Cause a fault of this kind; False if no process of that kind runs now."""
    if kind == "gateway":
        serving.again()
        return True
    instances = (f"gnomon {MODEL}", f"gnomon {HANDLER}")
    names = {"zygote": ("gnomon zygote",), "coordinator": ("gnomon coord",), "supervisor": ("gnomon super",)}
    found = serving.named(*names.get(kind, instances))
    chosen = found if kind == "zygote" else [rng.choice(found)] if found else []
    for pid in chosen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if kind == "frozen" else signal.SIGKILL)
    return bool(chosen)


@contextlib.asynccontextmanager
async def ledger(history: History) -> AsyncIterator[int]:
    """A server where the handler's instances report what they execute; yields its port."""

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while (line := await reader.readline()).endswith(b"\n"):
                history.executed[line.decode().strip()] += 1
                writer.write(b"k")
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def run(folder: Path, duration_s: float, count: int, deadline_ms: float) -> History:
    module, history = network(), History()
    DirectoryRepository(folder / "models").put(MODEL, "1", captured(module))
    serving = Serving(folder)
    try:
        async with ledger(history) as port:
            await asyncio.to_thread(deploy, serving.ready(), port)
            stop = asyncio.Event()
            calling = asyncio.create_task(callers(serving, history, stop, deadline_ms, questions(module)))
            await faults(serving, history, duration_s, count)
            stop.set()
            await calling
    finally:
        serving.program.stop()
    return history


def captured(module: torch.nn.Module) -> Mapping[str, bytes]:
    return capture(module, (torch.zeros(2, 3, 16, 16),), Description(MODEL, "1"))


def deploy(ours: gnomon.Gnomon, port: int) -> None:
    """Deploy both functions, and wait until they are ready."""
    labels = {"com.openfaas.scale.min": str(INSTANCES)}
    fixed = {"gnomon/autoscaler": "fixed", "gnomon/scheduler": "immediate"}
    document = {"service": MODEL, "image": "gnomon/body:latest", "labels": labels}
    ours.call("POST", "/system/functions", {**document, "annotations": {**fixed, "gnomon/model": MODEL}})
    ours.deploy(HANDLER)
    image, process = (ours.function(HANDLER)[name] for name in ("image", "envProcess"))
    document = {"service": HANDLER, "image": image, "envProcess": process, "labels": labels, "annotations": fixed}
    ours.call("PUT", "/system/functions", {**document, "envVars": {"LEDGER": str(port)}})
    for name in (MODEL, HANDLER):
        ours.wait_replicas(name, INSTANCES)


def figures(history: History, deadline_ms: float) -> list[Figure]:
    run_of = f"{history.attempts} attempts, {history.faults} faults, deadline {deadline_ms:g} ms"
    made = [
        measured("wrong", [len(history.wrong)], "", at_most=0, detail=run_of),
        measured(
            "doubled", [len(history.doubled)], "", at_most=0, detail=f"{sum(history.executed.values())} executions of the handler"
        ),
        measured(
            "refused_for_want_of_an_instance",
            [history.share(NO_INSTANCE)],
            "",
            at_most=REFUSED_AT_MOST,
            detail=ends_in_words(history),
        ),
        *(Figure(f"refused_{function}", history.share(NO_INSTANCE, function), "") for function in (MODEL, HANDLER)),
        Figure("no_connection", history.share(NO_CONNECTION), "", detail="attempts while no gateway listened"),
        Figure("attempts", history.attempts, ""),
        Figure("duration", history.duration_s, "s"),
    ]
    for kind in KINDS:
        outages = history.outages.get(kind, [])
        made.append(Figure(f"faults_{kind}", len(outages), ""))
        if outages:
            detail = f"median of {len(outages)}; at most {max(outages):.2f} s"
            made.append(Figure(f"outage_{kind}", statistics.median(outages), "s", detail=detail))
    return made


def ends_in_words(history: History) -> str:
    ends: Counter[str] = Counter()
    for (_, end), count in history.ends.items():
        ends[end] += count
    return ", ".join(f"{count} × {end}" for end, count in ends.most_common())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long")
    parser.add_argument("--faults", type=int, default=400, help="how many in that time, if they can")
    parser.add_argument("--deadline-ms", type=float, default=30_000.0, help="of every request")
    options = parser.parse_args(arguments)
    pace = pace_of(options)
    duration_s, count = (40.0, 9) if pace.quick else (60.0 * options.minutes, options.faults)
    with gnomon.temporary() as folder:
        history = asyncio.run(run(folder, duration_s, count, options.deadline_ms))
    for wrong in history.wrong[:5]:
        step(f"wrong: {wrong}")
    made = figures(history, options.deadline_ms)
    write("reliability_chaos", made, repeats=1, packages=("gnomon", "torch"), folder=pace.results)


if __name__ == "__main__":
    ended_well(main)
