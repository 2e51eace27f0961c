"""The plan of a sandbox's file system, on paper."""

import os
import stat

from gnomon_runtime.mount_namespace import Step, closed_ancestors, plan


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
