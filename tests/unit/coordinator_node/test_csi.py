"""What the kubelet and the node's plugin say to each other."""

from gnomon_coordinator.node import volumes as csi


def test_a_publish_request_says_the_same_when_it_is_read_again() -> None:
    wanted = csi.Publish("csi-1", "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/g/mount", {"a": "b"})

    assert csi.Publish.read(wanted.written()) == wanted
    assert csi.Publish.read(csi.Publish("v", "/t", block=True).written()).block


def test_a_probe_that_says_no_is_not_one_that_says_nothing() -> None:
    assert csi.ready(is_ready=True) == b"\x0a\x02\x08\x01"
    assert csi.ready(is_ready=False) == b"\x0a\x00"
