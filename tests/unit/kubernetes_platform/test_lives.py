"""An instance's life on a cluster: what ends it may come at any moment, also while its pod is being reached."""

from __future__ import annotations

import aiohttp
import pytest

from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_platforms.common import starting
from gnomon_platforms.kubernetes.channel import HttpChannel
from gnomon_platforms.openfaas.workloads import Life
from gnomon_platforms.testing import Recorder

DEPLOYMENT = {"service": "figlet", "image": "figlet:1"}
REQUEST = InstanceRequest(read_deployment(DEPLOYMENT), 1, 1, None, {})


@pytest.mark.parametrize("how", ["stopped", "ended"])
async def test_what_ends_while_its_pod_is_reached_is_never_ready_and_ends_once(how: str) -> None:
    listener, ended = Recorder(), list[Life]()
    life = Life(starting("figlet-1", REQUEST, "node-1", 0, 0.0), REQUEST, listener, ended.append)
    async with aiohttp.ClientSession() as session:
        channel = HttpChannel(session, "http://127.0.0.1:1", "token", 1.0, life.end)
        if how == "stopped":
            life.stop()
        else:
            life.end("its pod was removed")
        life.ready(channel, 0)
        life.end("the gateway stops")
    assert listener.ready == {}
    assert listener.times_gone == {"figlet-1": 1}
    assert ended == [life]


def test_cores_are_on_their_way_until_its_pod_has_them() -> None:
    request = InstanceRequest(read_deployment({**DEPLOYMENT, "annotations": {"gnomon/cores": "1"}}), 1, 1, None, {})
    life = Life(starting("figlet-1", request, "node-1", 0, 0.0), request, Recorder(), lambda _: None)
    life.give(3)
    assert (life.instance.cores, life.instance.coming_cores) == (1, 3)
    life.resized(3)
    assert (life.instance.cores, life.instance.coming_cores) == (3, None)
    life.give(1)
    assert (life.instance.cores, life.instance.coming_cores) == (3, 1)
    life.give(3)
    assert (life.instance.cores, life.instance.coming_cores) == (3, None), "it is to keep them"


def test_none_are_where_the_deployment_says_how_many_its_pods_have() -> None:
    request = InstanceRequest(read_deployment({**DEPLOYMENT, "limits": {"cpu": "2"}}), 1, 1, None, {})
    life = Life(starting("figlet-1", request, "node-1", 0, 0.0), request, Recorder(), lambda _: None)
    life.give(3)
    assert life.instance.coming_cores is None
