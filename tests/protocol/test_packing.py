"""Documents in bins: none lost, none doubled, each apart from the others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.data.marks import sample_layout, window_targets
from dtfm_protocol.data.packing import OPEN_BINS, Bin, Packer, closing
from dtfm_protocol.data.sample_encoding import Sample

END = 999
LENGTH = 8

Masks = list[tuple[list[bool], bool]]


def samples(masks: Masks) -> list[Sample]:
    """Samples whose tokens are all unlike each other, and unlike the padding."""
    found, at = [], 1000
    for mask, is_whole in masks:
        found.append(Sample(np.arange(at, at + len(mask)), np.array(mask, dtype=bool), is_whole))
        at += len(mask)
    return found


def masks(most: int = 30) -> st.SearchStrategy[Masks]:
    plain = st.integers(1, 3 * LENGTH).map(lambda size: ([True] * size, False))
    chat = st.lists(st.booleans(), min_size=1, max_size=2 * LENGTH).map(lambda mask: (mask, True))
    return st.lists(plain | chat, max_size=most)


def learned(bins: list[Bin], length: int = LENGTH) -> list[tuple[int, int]]:
    """Each token that is learned in a window of the corpus, with the one before it."""
    rows = [*bins, closing(END)]
    tokens, marks = (np.concatenate([one[part] for one in rows]) for part in (0, 1))
    found = []
    for at in range(0, len(tokens) - 1, length):
        window = tokens[at : at + length + 1]
        layout = sample_layout(marks[None, at : at + length + 1])
        assert layout.is_target.sum() == window_targets(marks[at : at + length + 1], length)[0]
        found += [(int(window[place]), int(window[place + 1])) for place in np.flatnonzero(layout.is_target[0])]
    return found


@given(masks(), st.booleans())
@settings(deadline=None)
def test_each_target_of_each_document_is_learned_once_from_the_token_before_it(found: Masks, shared: bool) -> None:
    packer = Packer(LENGTH, END, shared=shared)
    bins = list(packer.bins(samples(found)))
    wanted = []
    for sample in samples(found):
        tokens = sample.tokens[:LENGTH] if sample.is_whole else sample.tokens
        pairs = zip(tokens, tokens[1:], sample.is_target[1:], strict=False)
        wanted += [(int(before), int(token)) for before, token, is_target in pairs if is_target]
    assert sorted(learned(bins)) == sorted(wanted)
    counts = packer.counts
    assert (counts.bins, counts.targets) == (len(bins), len(wanted))
    assert counts.padding == sum(int((one.tokens == END).sum()) for one in bins)
    assert counts.samples == len(found)
    assert counts.cut == sum(is_whole and len(mask) > LENGTH for mask, is_whole in found)


@given(masks())
@settings(deadline=None)
def test_every_document_begins_at_place_0_of_a_segment_of_its_own(found: Masks) -> None:
    bins = list(Packer(LENGTH, END, shared=True).bins(samples(found)))
    of_token = {int(token): number for number, one in enumerate(samples(found)) for token in one.tokens}
    for one in bins:
        layout = sample_layout(np.append(one.marks, closing(END).marks)[None])
        for segment in range(layout.segments.max() + 1):
            tokens = one.tokens[layout.segments[0] == segment]
            assert len({of_token.get(int(token)) for token in tokens}) == 1
            assert layout.positions[0][layout.segments[0] == segment].tolist() == list(range(len(tokens)))


@given(masks(60))
@settings(deadline=None)
def test_the_layout_is_the_same_each_time_and_takes_fewer_bins_than_documents_apart(found: Masks) -> None:
    first, second = (list(Packer(LENGTH, END, shared=True).bins(samples(found))) for _ in range(2))
    assert [one.tokens.tolist() for one in first] == [one.tokens.tolist() for one in second]
    assert len(first) <= len(list(Packer(LENGTH, END, shared=False).bins(samples(found))))


def test_the_fullest_bin_with_room_is_taken() -> None:
    sizes = [5, 4, 3, 2, 2]  # 3 fits into what 5 leaves, and 2 and 2 into what 4 leaves
    bins = list(Packer(LENGTH, END, shared=True).bins(samples([([True] * size, False) for size in sizes])))
    assert [[int(token) for token in one.tokens if token != END] for one in bins] == [
        [1000, 1001, 1002, 1003, 1004, 1009, 1010, 1011],
        [1005, 1006, 1007, 1008, 1012, 1013, 1014, 1015],
    ]


def test_few_bins_wait_however_many_documents_come() -> None:
    packer, most = Packer(LENGTH, END, shared=True), 0
    came = 0

    def coming() -> list[Sample]:
        return samples([([True] * 5, False)] * (4 * OPEN_BINS))

    def counted() -> object:
        nonlocal came
        for one in coming():
            came += 1
            yield one

    for _ in packer.bins(counted()):  # type: ignore[arg-type]
        most = max(most, came - packer.counts.bins)
    assert most <= OPEN_BINS + 1
    assert packer.counts.bins == 4 * OPEN_BINS


def test_what_has_nothing_to_learn_is_left_out_and_counted() -> None:
    packer = Packer(LENGTH, END, shared=True)
    late = [False] * LENGTH + [True]
    assert list(packer.bins(samples([(late, True), ([True], True), ([False] * 3, True)]))) == []
    assert (packer.counts.samples, packer.counts.empty, packer.counts.cut) == (3, 3, 1)


@pytest.mark.parametrize("size", [LENGTH - 1, LENGTH, LENGTH + 1, 2 * LENGTH - 1, 2 * LENGTH])
def test_a_long_text_is_cut_into_pieces_that_overlap_by_a_token(size: int) -> None:
    bins = list(Packer(LENGTH, END, shared=True).bins(samples([([True] * size, False)])))
    assert len(bins) == -(-(size - 1) // (LENGTH - 1))
    assert sorted(learned(bins)) == [(1000 + place, 1001 + place) for place in range(size - 1)]
