"""Whatever bytes a peer sends, they are a message whose tensors lie inside the buffer, or nonsense."""

import math
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.signature import DATATYPE_BYTES
from gnomon_runtime.pair.headers import DATATYPES, HEADER, MAX_AXES, ROW, Kind, Message, NonsenseError, Row, decode, encode

BUFFER = 1 << 16


@st.composite
def rows(draw: st.DrawFn, samples: int) -> Row:
    datatype = draw(st.sampled_from(DATATYPES))
    shape = (samples, *draw(st.lists(st.integers(0, 3), max_size=MAX_AXES - 1)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    length = math.prod(shape) * DATATYPE_BYTES[datatype]
    return Row(64 * draw(st.integers(0, max(0, (BUFFER - length) // 64))), length, datatype, shape, order)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    samples = draw(st.integers(1, 8))
    begin = draw(st.integers(0, 1000))
    return Message(
        draw(st.sampled_from(Kind)),
        draw(st.integers(0, 2**64 - 1)),
        begin,
        begin + draw(st.integers(1, 1000)),
        samples,
        tuple(draw(st.lists(rows(samples), max_size=4))),
        draw(st.integers(0, 10**12)) / 1e9,
    )


def sound(message: Message) -> bool:
    return all(
        row.offset >= 0
        and row.offset + row.length <= BUFFER
        and row.offset % 64 == 0
        and row.length == math.prod(row.shape) * DATATYPE_BYTES[row.datatype]
        and row.shape[0] == message.samples
        and sorted(row.order) == list(range(len(row.shape)))
        for row in message.rows
    )


@given(messages())
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    assert decode(encode(message), BUFFER) == message


@given(messages(), st.data())
def test_a_changed_message_is_sound_or_nonsense(message: Message, data: st.DataObject) -> None:
    """Bytes changed, cut off or added, anywhere."""
    damaged = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for candidate in (bytes(damaged), bytes(damaged[:cut]), bytes(damaged) + bytes(cut)):
        with suppress(NonsenseError):
            assert sound(decode(candidate, BUFFER))


@given(st.binary(max_size=HEADER.size + 3 * ROW.size))
def test_noise_is_nonsense(noise: bytes) -> None:
    with suppress(NonsenseError):
        assert sound(decode(b"GNP1" + noise, BUFFER))


@given(messages(), st.data())
def test_every_number_may_be_the_largest(message: Message, data: st.DataObject) -> None:
    """Each field of a row set to what would wrap around in fixed-width arithmetic."""
    if not message.rows:
        return
    fields = list(ROW.unpack(encode(message)[HEADER.size : HEADER.size + ROW.size]))
    index = data.draw(st.integers(0, len(fields) - 1))
    widths = [64, 64, 8, 8, *[32] * 8, *[8] * 8]
    fields[index] = data.draw(st.sampled_from([2 ** widths[index] - 1, 2 ** (widths[index] - 1), 2 ** (widths[index] // 2)]))
    raw = encode(message)
    with suppress(NonsenseError):
        assert sound(decode(raw[: HEADER.size] + ROW.pack(*fields) + raw[HEADER.size + ROW.size :], BUFFER))
