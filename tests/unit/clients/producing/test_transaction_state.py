"""Model test of a transactional producer's states against a full history."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.clients.model import TopicPartition
from millrace.clients.producing.transaction_state import CoordinatorView, TransactionPhase, TransactionState
from millrace.errors import (
    AbortableTransactionError,
    InvalidTxnStateError,
    MessageTooLargeError,
    MillraceError,
    ProducerFencedError,
    TransactionAbortedError,
)

_PARTITIONS = [TopicPartition("t", number) for number in range(3)]
Phase = TransactionPhase


class _Model:
    """A producer as its user sees it.

    The model has flags and lists, and no phases.
    """

    def __init__(self) -> None:
        self.asked_for_id = False
        self.has_id = False
        self.epoch = -1
        self.is_open = False
        self.ending: str | None = None  # commit, abort, prepare
        self.lost: MillraceError | None = None
        self.broken: MillraceError | None = None
        self.added: set[TopicPartition] = set()
        self.told = False

    def may(self, event: str) -> bool:
        if self.broken is not None:
            return False
        if event == "initializing":
            return not self.has_id
        if event == "initialized":
            return self.asked_for_id and not self.has_id
        if event == "begun":
            return self.has_id and not self.is_open
        if event == "prepared":
            return self.is_open and self.lost is None and self.ending in (None, "prepare")
        if event == "committing":
            return self.is_open and self.lost is None and self.ending in (None, "commit")
        if event == "aborting":
            return self.is_open and (self.ending in (None, "abort", "prepare") or self.lost is not None)
        if event == "ended":
            return self.is_open and (self.ending == "abort" or (self.ending == "commit" and self.lost is None))
        return True

    def apply(self, event: str) -> None:
        if event == "initializing":
            self.asked_for_id = True
        elif event == "initialized":
            self.has_id, self.epoch = True, 0
        elif event == "begun":
            self.is_open = True
        elif event in ("prepared", "committing", "aborting"):
            self.ending = {"prepared": "prepare", "committing": "commit", "aborting": "abort"}[event]
            if event == "aborting":
                self.lost = None
        elif event == "ended":
            self.is_open, self.ending, self.told, self.lost = False, None, False, None
            self.added.clear()
            self.epoch += 1

    def spoil(self, error: MillraceError) -> None:
        if self.is_open and self.ending != "abort" and self.lost is None and self.broken is None:
            self.lost = error

    @property
    def can_send(self) -> bool:
        return self.is_open and self.ending is None and self.lost is None and self.broken is None


_events = st.lists(
    st.one_of(
        st.sampled_from(["initializing", "initialized", "begun", "prepared", "committing", "aborting", "ended"]),
        st.sampled_from(["send", "fail", "fail"]),
        st.just("break"),
    ),
    max_size=40,
).map(lambda events: ["initializing", "initialized", *events])


@given(_events, st.lists(st.sampled_from(_PARTITIONS), min_size=40, max_size=40), st.integers(0, 40))
def test_any_events_leave_the_state_of_the_model(
    events: list[str], partitions: list[TopicPartition], breaks_at: int
) -> None:
    state, model = TransactionState(transactional_id="x"), _Model()
    for number, event in enumerate(events):
        if event == "break":
            if number >= breaks_at:
                error = ProducerFencedError(f"broken {number}")
                state = state.broken(error)
                model.broken = model.broken or error
        elif event == "fail":
            error = MessageTooLargeError(f"lost {number}")
            model.spoil(error)
            state = state.failed(error)
        elif event == "send":
            state = _send(state, model, frozenset(partitions[number : number + 2]))
        elif model.may(event):
            state = _apply(state, event, model.epoch + 1)
            model.apply(event)
        else:
            with pytest.raises((InvalidTxnStateError, AbortableTransactionError, ProducerFencedError)):
                _apply(state, event, model.epoch + 1)
        _compare(state, model)


def _apply(state: TransactionState, event: str, next_epoch: int) -> TransactionState:
    if event == "initialized":
        return state.initialized(7, 0)
    if event == "ended":
        return state.ended(7, next_epoch)
    moved: TransactionState = getattr(state, event)()
    return moved


def _send(state: TransactionState, model: _Model, partitions: frozenset[TopicPartition]) -> TransactionState:
    if not model.can_send:
        with pytest.raises((InvalidTxnStateError, AbortableTransactionError, ProducerFencedError)):
            state.check_can_send()
        return state
    state.check_can_send()
    missing = state.missing(partitions)
    assert missing == partitions - model.added
    if missing:
        state = state.adding().added_to(missing)
        model.added |= missing
        model.told = True
    return state


def _compare(state: TransactionState, model: _Model) -> None:
    assert state.added == model.added
    assert (state.phase is Phase.FATAL_ERROR) == (model.broken is not None)
    if model.broken is not None:
        assert state.error is model.broken
        assert isinstance(state.sending_error(), ProducerFencedError)
        return
    assert state.epoch == model.epoch
    assert state.must_be_ended == model.told
    assert (state.phase is Phase.IN_TRANSACTION) == model.can_send
    if model.lost is not None:
        assert state.error is model.lost
        assert isinstance(state.sending_error(), AbortableTransactionError)
    elif model.ending == "abort":
        assert isinstance(state.sending_error(), TransactionAbortedError)
    else:
        assert state.sending_error() is None
    assert state.is_open == (model.is_open and (model.ending is None or model.lost is not None))


def test_a_call_whose_answer_is_not_known_leaves_perhaps_something_to_end() -> None:
    state = TransactionState(transactional_id="x").initializing().initialized(1, 0).begun()
    assert not state.must_be_ended
    unsure = state.adding()
    assert (unsure.must_be_ended, unsure.coordinator) == (True, CoordinatorView.PERHAPS)
    known = unsure.added_to(frozenset(_PARTITIONS))
    assert known.adding().coordinator is CoordinatorView.OPEN
    assert not known.committing().ended(1, 1).must_be_ended


def test_refusals_say_what_to_do() -> None:
    state = TransactionState(transactional_id="x")
    with pytest.raises(InvalidTxnStateError, match=r"x cannot send: it is 'uninitialized'; call init_transactions"):
        state.check_can_send()
    ready = state.initializing().initialized(1, 0)
    with pytest.raises(InvalidTxnStateError, match=r"call begin_transaction\(\) first"):
        ready.committing()
    failed = ready.begun().failed(MessageTooLargeError("too large"))
    with pytest.raises(
        AbortableTransactionError, match="abort the transaction, because a part of it failed: too large"
    ):
        failed.committing()
    with pytest.raises(ProducerFencedError, match="gone; close this producer"):
        failed.broken(ProducerFencedError("gone")).aborting()
