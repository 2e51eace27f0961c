"""The keys under which batches and results are handed over: none meets what is deleted or written late."""

import json
from pathlib import Path

import pytest

from gnomon_core.clock import VirtualClock
from gnomon_platforms.aws_lambda.client import Clients
from gnomon_platforms.aws_lambda.s3_transfer import ADDRESS_RENEWED_S, Place, Places, S3Transfer

LIFECYCLE = Path(__file__).parents[3] / "deploy" / "lambda" / "lifecycle.json"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    return Clients(1)


@pytest.fixture
def places(clients: Clients, clock: VirtualClock) -> Places:
    return Places(S3Transfer(clients, "bucket", "gnomon"), "echo-1-abcdef", clock)


def result(places: Places) -> Place:
    place = places.for_result()
    assert place is not None
    return place


def test_no_key_comes_twice_and_the_bucket_s_rule_covers_each(places: Places) -> None:
    keys = [str(places.for_batch()) for _ in range(3)] + [result(places).key for _ in range(3)]
    assert len(set(keys)) == 6
    [rule] = json.loads(LIFECYCLE.read_bytes())["Rules"]
    assert all(key.startswith(rule["Filter"]["Prefix"]) for key in keys)


def test_a_place_that_nothing_was_put_into_serves_once_more_and_never_two_at_once(places: Places) -> None:
    place = result(places)
    assert f"/{place.key}?" in place.address
    places.give_back(place)
    assert places.for_result() == place
    assert result(places).key != place.key


async def test_nobody_gets_an_address_that_may_end_before_the_invoke(places: Places, clock: VirtualClock) -> None:
    place = result(places)
    await clock.advance(ADDRESS_RENEWED_S)
    places.give_back(place)
    assert places.for_result() == place
    places.give_back(place)
    await clock.advance(1.0)
    assert result(places).key != place.key


def test_without_a_bucket_there_are_none(clients: Clients, clock: VirtualClock) -> None:
    nowhere = Places(S3Transfer(clients, None, "gnomon"), "echo-1-abcdef", clock)
    assert nowhere.for_batch() is None
    assert nowhere.for_result() is None
