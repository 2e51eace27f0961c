"""The messages between a coordinator and the instances of its node, on an instance's coordination socket.

Every Body with layer blocks and every pool container (an empty fork that becomes a Shadow) is born with descriptor 4, its end of
a SOCK_SEQPACKET pair. Messages are those of `gnomon_core.packets`, and each carries `epoch`: a number that grows with every start
of the coordinator. An instance that has seen a newer epoch answers {"say": "stale", "epoch": newest} and does nothing else; else
it answers with the epoch that it was asked with. A coordinator drops what carries another epoch than its own.

Coordinator to instance; `shadow` and `body` are instance ids, `blocks` block numbers, `split` a table from batch to b_S:

    {"do": "hello"}                     say who you are; the answer is "empty", "registered" or "body"
    {"do": "load", "shadow", "body", "program", "weights", "layers", "weight_mode", "cores", "cpus", "blocks", "split",
     "engine", "graph"}                 (the last two where another engine than the program's runs the model)
        with [order, log]               to a pool container: enter the order's sandbox, write to the log, load the blocks, and be
                                        that Shadow. With "afar" its Body is on another node, and comes over a connection
    {"do": "pair", "shadow", "blocks", "split", "shadow_cores", "expected_ms"}
        with [data, to, from]           to the Body, which writes the buffer `to` and reads `from`. It holds from its next batch
                                        on, beside what the Body does with other Shadows; what it had with this one is dropped
    {"do": "pair", …, "url", "token"}   without descriptors: the same with a Shadow on another node, whose instance has the HTTP
                                        port at this URL. The Body connects beside its batches
                                        (`gnomon_runtime.pair.remote_link`) and says "paired" when the Shadow has agreed,
                                        "unpaired" with the reason when it cannot be had
    {"do": "join", "shadow", "body", "blocks", "split"}
        with [data, to, from]           the mirror image to the Shadow, which reads the buffer `to` and writes `from`
        with [connection]               from a Body on another node, which waits for the answer to its upgrade
    {"do": "change", "shadow", "blocks", "split"}
        and "cores", "cpus" to a Shadow, "shadow_cores", "expected_ms" to a Body. A Shadow is told the union of old and new blocks
                                        first, its Body is told next, and then the Shadow is told the new ones alone: no batch
                                        meets a Shadow without its blocks
    {"do": "unpair", "shadow"}          to the Body: without this Shadow from the next batch on
    {"do": "promote", "shadow"}
        with [order, channel]           to the Shadow: load the rest of the model beside its work for the pair, in order to become
                                        the Body of this order, which gets its batches over this channel
    {"do": "serve", "shadow"}           to a complete Shadow whose Body works without it: become that Body
    {"do": "stop"}                      to the Shadow: exit

`expected_ms[r][s - 1]` is what the Shadow is predicted to take for s samples of run r (`Layers.runs(blocks)`), the hand-over
included; an empty list where nothing is known. `order` and `log` are a sealed `gnomon_core.launch.Order` and a pipe's end for
writing; `data` is one end of a SOCK_SEQPACKET pair; both buffers are sealed in size (`gnomon_core.shared_memory`).

Instance to coordinator:

    {"say": "empty", "pid"}             a pool container that can be given a load
    {"say": "registered", "shadow", "body", "blocks", "resident_bytes", "load_ms", "paired", "afar"}
                                        a Shadow with its blocks resident; `paired` says that it has a partner's buffers, or its
                                        connection, `afar` that its Body is on another node
    {"say": "body", "pairs"}            a Body; `pairs` is a list of {"shadow", "blocks", "split", "elsewhere"}, empty where it
                                        works alone; `elsewhere` are Shadows on another node
    {"say": "paired", "shadow"}         the Body uses this Shadow; from a Shadow: it has joined
    {"say": "changed", "blocks"}        both; a Body says which "shadow"
    {"say": "unpaired", "shadow", "reason"}
                                        the Body works without this Shadow, told to or not; from a Shadow: its Body has gone
    {"say": "complete", "shadow", "resident_bytes", "load_ms"}
                                        a Shadow that holds the whole model
    {"say": "failed", "shadow", "reason"}
                                        a load, join or change that did not succeed
    {"say": "stale", "epoch"}

An instance may run a user's model, so a coordinator trusts its messages only where they concern that instance.
"""

from __future__ import annotations

import json
from typing import Any

from gnomon_core.packets import MAX_PACKET_BYTES

DESCRIPTOR = 4
"""File descriptor of an instance's end of the coordination socket."""
EMPTY_KIND = "empty"
"""`Launch.kind` of a pool container, which starts with /dev/null as its batch channel."""
NODE_PORT, PAIR_PORT = 7468, 7469
"""Ports of a Kubernetes node's coordinator: for requests for Shadows, and for Bodies of other nodes."""
NODES_NAMESPACE = "gnomon-nodes"
"""Default Kubernetes namespace of the nodes' coordinators."""
PAIR_PATH, PAIR_PROTOCOL = "/gnomon/pair", "gnomon-pair/1"
"""HTTP path of a Body's request to a Shadow on another node, and the protocol that the connection is upgraded to."""
SHADOW_KIND = "shadow"
"""`Launch.kind` in the order that comes with a load. Its options are those of "model" with `layers`, `body` and `weight_mode`."""
_EPOCH_BYTES = 1024
"""Bytes reserved for the epoch, which is added when the message is sent."""


def fitting(message: dict[str, Any]) -> dict[str, Any]:
    """The message, without predictions if it would exceed a packet: the Body then measures for itself."""
    if message.get("expected_ms") and len(json.dumps(message)) > MAX_PACKET_BYTES - _EPOCH_BYTES:
        return {**message, "expected_ms": []}
    return message
