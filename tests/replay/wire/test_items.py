"""Items in Reverb's messages, and answers that no honest server gives."""

import contextlib

import cramjam
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podzero.replay import reverb_pb2 as pb
from podzero.replay.errors import WrongServer
from podzero.replay.wire import Inserter, items_of

ROWS = (np.arange(5 * 7).reshape(5, 7) * 37 % 256).astype(np.uint8)


def answer(request, order, probability=0.5, table_size=9):
    """The answer of a server that was sent `request` and drew its items in this order."""
    chunks = {chunk.chunk_key: chunk for chunk in request.chunks}
    entries = []
    for index in order:
        item = request.items[index]
        key = item.flat_trajectory.columns[0].chunk_slices[0].chunk_key
        info = pb.SampleInfo(item=item, probability=probability, table_size=table_size)
        entries.append(pb.SampleStreamResponse.SampleEntry(info=info, data=[chunks[key]], end_of_sequence=True))
    return pb.SampleStreamResponse(entries=entries)


def inserted(rows=ROWS, first_key=100, chunk_steps=1):
    keys = [(first_key + index) % 2**64 for index in range(len(rows))]
    request = Inserter("t", rows.shape[1], chunk_steps).request(rows, np.arange(1.0, len(rows) + 1), keys)
    return pb.InsertStreamRequest.FromString(request)


def unpacked(answer, item_bytes=7):
    """The items that an answer completes, and their rows."""
    (items,) = items_of([answer])
    return items, read(items, item_bytes)


def read(items, item_bytes):
    rows = np.empty((len(items), item_bytes), np.uint8)
    items.read(list(rows))
    return rows


@pytest.mark.parametrize("chunk_steps", [1, 2, 4, 5, 9])
def test_rows_come_back_as_they_were_inserted(chunk_steps):
    order = [4, 0, 2, 2]
    items, rows = unpacked(answer(inserted(chunk_steps=chunk_steps), order))
    np.testing.assert_array_equal(rows, ROWS[order])
    assert items.drawn.tolist() == [(100 + index, 0.5, 9) for index in order]


@given(rows=st.binary(min_size=12, max_size=12), first_key=st.integers(0, 2**64 - 1), steps=st.integers(1, 5))
def test_any_bytes_come_back_also_where_keys_pass_the_largest_number(rows, first_key, steps):
    table = np.frombuffer(rows, np.uint8).reshape(4, 3)
    items, found = unpacked(answer(inserted(table, first_key, steps), range(4)), 3)
    np.testing.assert_array_equal(found, table)
    assert items.drawn["key"].tolist() == [(first_key + index) % 2**64 for index in range(4)]


def test_the_memory_of_a_writer_does_not_grow_with_what_it_has_written():
    rows = np.random.default_rng(0).integers(0, 256, (64, 8192), np.uint8)  # so that they are not compressed
    inserter, priorities, keys = Inserter("t", 8192, 1), np.ones(64), range(64)
    inserter.request(rows, priorities, keys)
    before = psutil.Process().memory_info().rss
    written = sum(len(inserter.request(rows, priorities, keys)) for _ in range(200))
    assert written > 100 * 2**20
    assert psutil.Process().memory_info().rss - before < 25 * 2**20


def test_a_request_holds_tables_priorities_and_chunks_of_the_steps_that_were_asked_for():
    request = inserted(chunk_steps=2)
    assert [len(chunk.data.tensors) for chunk in request.chunks] == [1, 1, 1]
    shapes = [[dim.size for dim in chunk.data.tensors[0].tensor_shape.dim] for chunk in request.chunks]
    assert shapes == [[2, 7], [2, 7], [1, 7]]
    assert [chunk.data_uncompressed_size for chunk in request.chunks] == [14, 14, 7]
    assert [(item.table, item.priority) for item in request.items] == [("t", float(n)) for n in range(1, 6)]
    assert not request.keep_chunk_keys


def test_a_request_holds_nothing_of_the_one_before():
    """Its messages are filled in again and again."""
    inserter = Inserter("t", 7, 4)
    inserter.request(ROWS[::-1], np.zeros(5), range(7, 12))
    again = inserter.request(ROWS[:3], np.array([0.0, 2.0, 0.5]), [2**64 - 1, 0, 1])
    assert again == Inserter("t", 7, 4).request(ROWS[:3], np.array([0.0, 2.0, 0.5]), [2**64 - 1, 0, 1])


def test_an_item_whose_chunks_come_in_two_answers_is_given_with_the_second():
    first, second = inserted(ROWS[:1], 1), inserted(ROWS[1:2], 2)
    pieces = [pb.FlatTrajectory.ChunkSlice(chunk_key=key, offset=0, length=1) for key in (1, 2)]
    trajectory = pb.FlatTrajectory(columns=[pb.FlatTrajectory.Column(chunk_slices=pieces)])
    info = pb.SampleInfo(item=pb.PrioritizedItem(key=3, flat_trajectory=trajectory))
    entry = pb.SampleStreamResponse.SampleEntry
    begun = pb.SampleStreamResponse(entries=[entry(info=info, data=first.chunks)])
    end = pb.SampleStreamResponse(entries=[entry(data=second.chunks, end_of_sequence=True)])
    none, items = items_of([begun, end])
    assert len(none) == 0
    np.testing.assert_array_equal(read(items, 14), [np.concatenate([ROWS[0], ROWS[1]])])


def test_steps_that_reverb_stored_as_differences_are_summed():
    differences = ROWS.copy()
    differences[1:] -= ROWS[:-1]
    request = inserted(differences, chunk_steps=5)
    request.chunks[0].delta_encoded = True
    np.testing.assert_array_equal(unpacked(answer(request, range(5)))[1], ROWS)


def damaged(change):
    """An answer of one item after `change` to its entry."""
    whole = answer(inserted(chunk_steps=2), [1])
    change(whole.entries[0])
    return whole


def tensor_of(entry):
    return entry.data[0].data.tensors[0]


def piece_of(entry):
    return entry.info.item.flat_trajectory.columns[0].chunk_slices[0]


def bomb():
    """Four bytes that claim to hold two gigabytes."""
    return bytes([0xFF, 0xFF, 0xFF, 0xFF, 0x07])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda e: e.info.item.flat_trajectory.ClearField("columns"), "0 columns"),
        (lambda e: e.info.item.flat_trajectory.columns.add(), "2 columns"),
        (lambda e: e.ClearField("data"), "without its chunk"),
        (lambda e: setattr(piece_of(e), "chunk_key", 5), "without its chunk 5"),
        (lambda e: setattr(piece_of(e), "index", 1), "1 tensors"),
        (lambda e: setattr(piece_of(e), "index", -1), "1 tensors"),
        (lambda e: setattr(piece_of(e), "offset", 2), "2 steps"),
        (lambda e: setattr(piece_of(e), "offset", -1), "2 steps"),
        (lambda e: setattr(piece_of(e), "length", 0), "2 steps"),
        (lambda e: setattr(piece_of(e), "length", 2**31 - 1), "2 steps"),
        (lambda e: setattr(tensor_of(e), "dtype", 1), "dtype 1"),
        (lambda e: tensor_of(e).tensor_shape.ClearField("dim"), r"shape \[\]"),
        (lambda e: setattr(tensor_of(e).tensor_shape.dim[0], "size", 2**40), "1099511627776"),
        (lambda e: setattr(tensor_of(e).tensor_shape.dim[0], "size", 0), r"\[0, 7\]"),
        (lambda e: setattr(tensor_of(e).tensor_shape.dim[1], "size", -7), "-7"),
        (lambda e: setattr(tensor_of(e).tensor_shape.dim[0], "size", 3), "14 bytes; expected 21"),
        (lambda e: setattr(tensor_of(e), "tensor_content", b""), "0 compressed bytes"),
        (lambda e: setattr(tensor_of(e), "tensor_content", tensor_of(e).tensor_content[:-3]), "compressed bytes"),
        (lambda e: setattr(tensor_of(e), "tensor_content", bomb()), "compressed bytes"),
        (lambda e: setattr(tensor_of(e), "tensor_content", bytes(cramjam.snappy.compress_raw(b"x"))), "1 bytes"),
        (lambda e: setattr(tensor_of(e).tensor_shape.dim[1], "size", 2), "too many"),
    ],
)
def test_an_answer_that_holds_something_else_is_refused(change, found):
    with pytest.raises(WrongServer, match=found):
        unpacked(damaged(change))


@given(content=st.binary(max_size=60), steps=st.integers(-2, 4), size=st.integers(-2, 9), delta=st.booleans())
def test_no_content_of_a_tensor_raises_anything_else(content, steps, size, delta):
    def change(entry):
        tensor_of(entry).tensor_content = content
        tensor_of(entry).tensor_shape.dim[0].size = steps
        tensor_of(entry).tensor_shape.dim[1].size = size
        entry.data[0].delta_encoded = delta

    with contextlib.suppress(WrongServer):
        unpacked(damaged(change))


@given(text=st.binary(max_size=200))
def test_any_message_that_protobuf_can_read_is_unpacked_or_refused(text):
    from google.protobuf.message import DecodeError

    try:
        message = pb.SampleStreamResponse.FromString(text)
    except DecodeError:
        return
    with contextlib.suppress(WrongServer):
        unpacked(message)
