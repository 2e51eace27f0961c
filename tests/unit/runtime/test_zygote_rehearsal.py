"""A zygote rehearses for its forks; what goes wrong in that is told and ends nothing."""

from gnomon_runtime.child_init import Steps
from gnomon_runtime.zygote import rehearsal_of, rehearse


def test_all_steps_are_taken() -> None:
    taken: list[int] = []

    def steps() -> Steps:
        for number in range(3):
            taken.append(number)
            yield

    assert rehearse(steps) == []
    assert taken == [0, 1, 2]


def test_one_that_fails_is_told_of() -> None:
    def steps() -> Steps:
        yield
        raise RuntimeError("no such kernel")

    assert rehearse(steps) == ["rehearsal: RuntimeError: no such kernel"]


def test_only_our_own_modules_have_rehearsals() -> None:
    assert rehearse(rehearsal_of(["json", "gnomon_runtime.zygote"])) == []
