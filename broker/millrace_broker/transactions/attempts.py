"""Attempts at what is committed together: which of them may commit, and which are fenced.

Whoever commits many producers under an external id may die in the middle of an epoch and begin it again, or be taken
for dead and not be. Each execution of an epoch is an *attempt* with a name of its own. One that is not known yet takes
over from those before it: what they have open is aborted at once, and so holds no reader back, and they can neither
join nor commit any more. An external id may have an *owner*: another one, whose epochs would be taken for the owner's
and passed over as committed, is refused.

Invariants: one attempt of one epoch may commit at any time; an epoch that was begun, or one before it, is not begun by
an attempt that was fenced. Like ``rules`` this is pure: what is returned has to be written before it is true.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from millrace.errors import CommitOwnerError, InvalidRequestError, ProducerFencedError
from millrace_broker.transactions.metadata import ExternalCommit

FORMER_ATTEMPTS_MAX: Final = 16
"""So many attempts of one epoch are remembered as fenced. An older one would have to wake up after as many others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One execution of an epoch. ``retention_ms`` is how long its external id is remembered unused; 0 is for ever."""

    external_id: str
    external_epoch: int
    name: str
    owner: str = ""
    retention_ms: int = 0


def was_committed(last: ExternalCommit | None, external_epoch: int) -> bool:
    """Whether an epoch needs not be written (again)."""
    return last is not None and external_epoch <= last.external_epoch


def begin(last: ExternalCommit | None, attempt: Attempt, now_ms: int) -> ExternalCommit | None:
    """Let an attempt take part in an epoch that was not committed; ``None`` if it has begun already.

    A value means that it takes over: what others have open under the external id is to be aborted.

    Raises ``CommitOwnerError``, ``ProducerFencedError`` for an attempt that another one has replaced or an epoch before
    the one that has begun, ``InvalidRequestError``.
    """
    if not (attempt.external_id and attempt.name) or attempt.external_epoch < 0 or attempt.retention_ms < 0:
        raise InvalidRequestError(f"{attempt}: expected an external id, the name of an attempt, and numbers from 0 on")
    check_owner(last, attempt.external_id, attempt.owner)
    last = last or ExternalCommit(external_id=attempt.external_id)
    former: tuple[str, ...] = ()
    if attempt.external_epoch < last.begun_epoch:
        raise ProducerFencedError(
            f"epoch {attempt.external_epoch} of {attempt.external_id} cannot begin: {last.begun_epoch} has begun"
        )
    if attempt.external_epoch == last.begun_epoch:
        if attempt.name == last.attempt:
            return None
        if attempt.name in last.former_attempts:
            raise fenced(last, attempt.name)
        former = given_up(last, now_ms).former_attempts if last.attempt else last.former_attempts
    return replace(
        last,
        owner=attempt.owner or last.owner,
        begun_epoch=attempt.external_epoch,
        attempt=attempt.name,
        former_attempts=former,
        updated_ms=now_ms,
        retention_ms=attempt.retention_ms,
    )


def given_up(last: ExternalCommit, now_ms: int) -> ExternalCommit:
    """The present attempt ends without a commit: nobody joins it any more, and the next one may begin."""
    former = (last.attempt, *last.former_attempts)[:FORMER_ATTEMPTS_MAX]
    return replace(last, attempt="", former_attempts=former, updated_ms=now_ms)


def check_owner(last: ExternalCommit | None, external_id: str, owner: str) -> None:
    """Raise ``CommitOwnerError`` where an external id is somebody else's."""
    if last is not None and last.owner and owner and owner != last.owner:
        raise CommitOwnerError(
            f"external id {external_id} belongs to {last.owner}, which has committed {last.external_epoch} last: "
            f"{owner} needs another one"
        )


def check_is_present(last: ExternalCommit | None, external_id: str, external_epoch: int, name: str) -> None:
    """Raise ``ProducerFencedError`` unless an attempt is the one that may commit an epoch."""
    if last is None or last.begun_epoch != external_epoch:
        raise ProducerFencedError(f"attempt {name} has not begun epoch {external_epoch} of {external_id}")
    if last.attempt != name:
        raise fenced(last, name)


def fenced(last: ExternalCommit, name: str) -> ProducerFencedError:
    """The error of an attempt that another one has replaced, or that was given up."""
    why = f"attempt {last.attempt} has taken over" if last.attempt else "it was aborted"
    return ProducerFencedError(f"attempt {name} at epoch {last.begun_epoch} of {last.external_id} is fenced: {why}")


def is_expired(commit: ExternalCommit, now_ms: int) -> bool:
    """Whether an external id was not used for as long as it is to be remembered."""
    return 0 < commit.retention_ms <= now_ms - commit.updated_ms
