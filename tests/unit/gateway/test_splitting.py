"""Requests of more samples than a batch holds: their parts, and one answer of all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_gateway.v2.splitting import join, most_samples, split


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    samples=st.integers(1, 40),
    max_batch=st.integers(1, 12),
    seed=st.randoms(use_true_random=False),
)
def test_the_parts_of_a_body_joined_are_the_body(sizes: list[int], samples: int, max_batch: int, seed: object) -> None:
    body = seed.randbytes(samples * sum(sizes))  # type: ignore[attr-defined]
    parts = split(sizes, memoryview(body), samples, max_batch)
    assert all(1 <= count <= max_batch for count, _ in parts)
    assert [count for count, _ in parts[:-1]] == [max_batch] * (len(parts) - 1)
    assert sum(count for count, _ in parts) == samples
    assert join(sizes, [part for _, part in parts], [count for count, _ in parts]) == body


def test_each_part_has_its_samples_of_every_tensor() -> None:
    body = b"AaBbCc" + b"123"  # two bytes and one byte a sample
    assert [(count, bytes(part)) for count, part in split([2, 1], memoryview(body), 3, 2)] == [(2, b"AaBb12"), (1, b"Cc3")]


def test_an_answer_of_another_length_is_not_joined() -> None:
    with pytest.raises(ValueError, match="3 bytes for 2 samples"):
        join([2], [b"AaB", b"C"], [2, 1])


def test_a_request_may_have_a_whole_batch_and_some_hundred_samples_where_batches_are_small() -> None:
    small, photo = ModelSignature("m", "1", (TensorSpec("x", "FP32", (2,)),), ()), TensorSpec("x", "FP32", (3, 224, 224))
    assert [most_samples(small, max_batch) for max_batch in (1, 1000)] == [256, 1000]
    assert [most_samples(replace(small, inputs=(photo,)), max_batch) for max_batch in (1, 32)] == [13, 32]
    assert most_samples(replace(small, inputs=(photo, photo)), 1) == 8
