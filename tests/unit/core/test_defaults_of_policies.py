"""Some policies have other defaults than the rest. They are a policy's own, whatever else begins as its name does."""

import pytest

from gnomon_core.settings import Settings, read_settings


@pytest.mark.parametrize("name", ["asyfunc", "asyfunc-", "batch", "batch+"])
def test_policies_that_split_or_plan_batches_have_batches_of_eight(name: str) -> None:
    assert read_settings({}, {"gnomon/autoscaler": name}).max_batch == 8
    assert read_settings({}, {"gnomon/autoscaler": name, "gnomon/max-batch": "2"}).max_batch == 2


@pytest.mark.parametrize("name", ["batch-mine", "batch+mine", "batches", "asyfunc-mine", "asyfunc2"])
def test_a_policy_of_ones_own_has_the_usual_defaults_whatever_its_name_begins_with(name: str) -> None:
    assert read_settings({}, {"gnomon/autoscaler": name}) == Settings(autoscaler=name)
