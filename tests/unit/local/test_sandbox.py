"""A function's place on this machine: its view of the file system, its user and how it is launched."""

import os
import socket
import stat
from pathlib import Path

import pytest

from gnomon_core import packets
from gnomon_core.launch import Launch, Limits, Order, Sandbox
from gnomon_platforms.local import recipes as users
from gnomon_platforms.local.recipes import Users
from gnomon_runtime.mount_namespace import Step, closed_ancestors, plan
from tests.refusals import refused


def cover(path: str, *, writable: bool = False) -> Step:
    return Step(path, bind=False, writable=writable)


def bind(path: str, *, writable: bool = False) -> Step:
    return Step(path, bind=True, writable=writable)


def test_needed_path_below_a_hidden_one_is_bound_back() -> None:
    steps = plan({"/state/models/m.bin": False}, {"/state": False})
    assert steps == [cover("/state"), bind("/state/models/m.bin")]


def test_where_nothing_is_hidden_only_what_may_be_written_is_mounted() -> None:
    """Everything else is read-only there, and can be seen."""
    assert plan({"/usr/lib": False, "/opt/x": True}, {}) == [bind("/opt/x", writable=True)]


def test_a_folder_inside_a_bound_folder_needs_no_mount_of_its_own_unless_it_may_be_written() -> None:
    steps = plan({"/root/python": False, "/root/python/lib": False, "/root/python/cache": True}, {"/root": False})
    assert steps == [cover("/root"), bind("/root/python"), bind("/root/python/cache", writable=True)]


def test_hidden_path_inside_a_bound_one_stays_hidden() -> None:
    steps = plan({"/tmp/work": True, "/tmp/work/state/built": False}, {"/tmp": True, "/tmp/work/state": False})
    assert steps == [
        cover("/tmp", writable=True),
        bind("/tmp/work", writable=True),
        cover("/tmp/work/state"),
        bind("/tmp/work/state/built"),
    ]


def test_a_cover_inside_a_cover_is_not_needed() -> None:
    assert plan({}, {"/tmp": True, "/tmp/state": False}) == [cover("/tmp", writable=True)]


def test_names_that_only_begin_alike_are_different() -> None:
    assert plan({"/state2/x": False}, {"/state": False}) == [cover("/state")]


def test_directories_that_the_user_cannot_pass_are_found() -> None:
    modes = {"/": (0o755, 0), "/root": (0o700, 0), "/root/.pyenv": (0o755, 0), "/home": (0o755, 0), "/home/me": (0o700, 1000)}

    def status(path: str) -> os.stat_result:
        mode, owner = modes[path]
        return os.stat_result((stat.S_IFDIR | mode, 0, 0, 0, owner, owner, 0, 0, 0, 0))

    paths = ["/root/.pyenv/bin", "/home/me/file"]
    assert closed_ancestors(paths, 2000, status) == {"/root", "/home/me"}
    assert closed_ancestors(paths, 1000, status) == {"/root"}


def test_each_function_has_its_own_user_also_after_a_restart(tmp_path: Path) -> None:
    first = Users(tmp_path)
    ids = [first.uid(name) for name in ("a.x", "b.x", "a.y")]
    assert len(set(ids)) == 3
    assert min(ids) >= users.FIRST_UID
    again = Users(tmp_path)
    assert [again.uid(name) for name in ("a.x", "b.x", "a.y")] == ids
    assert again.uid("new.x") not in ids


def test_when_no_id_is_left_nobody_gets_somebody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "LAST_UID", users.FIRST_UID)
    known = Users(tmp_path)
    known.uid("a")
    with pytest.raises(RuntimeError, match="are taken"):
        known.uid("b")
    assert known.uid("a") == users.FIRST_UID


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"a": 0}',
        '{"a": true}',
        '{"a": "200000"}',
        '{"a": 300000}',
        '{"a": 200000, "b": 200000}',
        "\0",
        "\ud800",
    ],
)
def test_untrusted_file_is_named_and_nothing_is_launched(tmp_path: Path, content: str) -> None:
    """Root's id among them, or one for two functions, would be worse than none."""
    file = tmp_path / "users.json"
    file.write_bytes(content.encode("utf-8", "surrogatepass"))
    with refused(code="users_unreadable", match=r"users\.json cannot be read"):
        Users(tmp_path)
    assert file.exists()


def test_an_order_reads_back_as_it_was_written() -> None:
    launch = Launch("model", "f.ns", "f-1", 2, 8, {"A": "b"}, {"program": "/p"})
    sandbox = Sandbox(7, ("/r",), ("/w",), ("/h",), read_only_root=True, secrets={"s": b"\x00\xff"}, limits=Limits(1, 2, 3, 4.5))
    order = Order(launch, sandbox, entered=True, cpus=(0, 3))
    assert Order.from_json(order.to_json()) == order


def test_a_sandbox_may_be_described_by_what_differs_from_the_usual() -> None:
    assert Sandbox.from_json('{"uid": 5, "hidden": ["/x"]}') == Sandbox(uid=5, hidden=("/x",))


def test_a_message_brings_its_descriptors_and_they_are_not_inherited() -> None:
    left, right = packets.socket_pair()
    with left, right:
        file = packets.sealed_file("test", b"content")
        packets.send(left, {"do": "it"}, [file, file])
        os.close(file)
        message, descriptors = packets.receive(right)
        assert message == {"do": "it"}
        assert [packets.read_file(descriptor) for descriptor in descriptors] == [b"content"] * 2
        assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
        with pytest.raises(PermissionError):
            os.write(descriptors[0], b"x")
        for descriptor in descriptors:
            os.close(descriptor)


def test_the_end_of_the_other_side_is_told() -> None:
    left, right = packets.socket_pair()
    with right:
        left.close()
        with pytest.raises(packets.PeerGoneError):
            packets.receive(right)
        with pytest.raises(packets.PeerGoneError):
            packets.send(right, {})


def test_a_message_that_does_not_fit_is_refused_where_it_is_made() -> None:
    left, right = packets.socket_pair()
    with left, right, pytest.raises(ValueError, match="at most"):
        packets.send(left, {"text": "x" * packets.MAX_PACKET_BYTES})
    assert isinstance(left, socket.socket)
