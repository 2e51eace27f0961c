"""Messages between processes that may end at any moment."""

import pytest

from gnomon_core import packets


def test_the_last_words_of_one_that_left_something_unread_are_heard() -> None:
    ours, theirs = packets.socket_pair()
    with ours:
        packets.send(theirs, {"event": "born"})
        packets.send(theirs, {"event": "warm"})
        packets.send(ours, {"id": "never read"})
        theirs.close()
        assert packets.receive(ours) == ({"event": "born"}, [])
        assert packets.receive(ours) == ({"event": "warm"}, [])
        with pytest.raises(packets.PeerGoneError):
            packets.receive(ours)
