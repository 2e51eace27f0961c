"""Figure 2(b): how many instances of vanilla Lambda run at once, from Twitter's hour, a call for each request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from benchmarks.reports.batch import demand, services
from benchmarks.reports.batch.services import Service
from benchmarks.reports.batch.setting import LARGEST_MB, Setting
from benchmarks.reports.report import Results, Step

APPLICATION = "Inception-v4"
HOURS = (5, 6, 7)
BIN_S = 60.0
LOOK_S = 0.1


def steps(setting: Setting) -> Iterable[Step]:
    about = {"hours": HOURS[: 1 if setting.quick else None]}
    yield Step("fig2", _concurrency, about, (services.step_name(APPLICATION),), (demand, services, *demand.FILES))


def _concurrency(parameters: Mapping[str, Any], results: Results) -> dict[str, Any]:
    """Each minute's rate, and of the number in service, looked at ten times a second, its mean and its largest."""
    seconds = Service(results[services.step_name(APPLICATION)]).row(LARGEST_MB, 1)[0]
    hours = parameters["hours"]
    times = np.concatenate([demand.times("Twitter", hour) + number * demand.HOUR for number, hour in enumerate(hours)])
    looks = np.arange(1.0, len(hours) * demand.HOUR, LOOK_S)
    running = np.searchsorted(times, looks, side="right") - np.searchsorted(times, looks - seconds, side="right")
    minutes = np.arange(len(hours) * demand.HOUR // int(BIN_S))
    places = (looks // BIN_S).astype(int)
    instances = np.bincount(places, weights=running, minlength=len(minutes)) / np.bincount(places, minlength=len(minutes))
    largest = np.zeros(len(minutes), dtype=np.int64)
    np.maximum.at(largest, places, running)
    arrived = np.bincount((times // BIN_S).astype(int), minlength=len(minutes)) / BIN_S
    return {
        "service_s": seconds,
        "minute": minutes.tolist(),
        "rate": arrived.round(3).tolist(),
        "instances": instances.round(3).tolist(),
        "largest": largest.tolist(),
        "correlation": float(np.corrcoef(arrived, instances)[0, 1]),
    }
