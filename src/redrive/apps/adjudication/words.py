"""Words: receipts, decisions about them, and in which states both can be. Nothing here reads or writes anything."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

RETRY_SOURCE: Final = "post_adjudication_retry"
"""Where the evidence of retries comes from."""

_LONGEST: Final = 200

ReceiptId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
Name = Annotated[str, Field(min_length=1, max_length=_LONGEST)]


class Outcome(StrEnum):
    """What an adjudication says about the money in escrow."""

    RELEASE = "release"
    """All of it goes to the seller."""

    REFUND = "refund"
    """All of it goes back to the buyer."""

    SPLIT = "split"
    """The seller gets a part, the buyer the rest."""


class Progress(StrEnum):
    """``settlement_progression_status``: where the money stands."""

    IN_ESCROW = "in-escrow"
    """Nobody has decided. Left by an adjudication."""

    EXECUTION_PENDING = "execution-pending"
    """Decided, and on its way. Left by the execution: executed, or dispute-ready when it is dead-lettered."""

    EXECUTED = "executed"
    """Done. Never left."""

    DISPUTE_READY = "dispute-ready"
    """The execution is a dead letter; people decide. Left by a replay of it, or by adjudicating the same again."""


class Dispute(StrEnum):
    """``dispute_lifecycle_status``: who has the next move."""

    OPEN = "open"
    ADJUDICATED = "adjudicated"
    RE_ESCALATED = "re-escalated"
    CLOSED = "closed"


class Submission(BaseModel):
    """A transaction whose money is in escrow."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    transaction_receipt_id: ReceiptId
    buyer: Name
    seller: Name
    amount_minor: Annotated[int, Field(gt=0, le=10**15, strict=True)]
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")]


class Decision(BaseModel):
    """An adjudication as it is handed in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    outcome: Outcome
    by: Name
    seller_minor: Annotated[int, Field(gt=0, strict=True)] | None = None
    """What the seller gets of a split."""
    dispatch_reference: Name | None = None
    """Under which name whoever decided knows this run; it comes back in the evidence."""

    def share(self, amount: int) -> int:
        """Say how much of the amount goes to the seller."""
        if self.outcome is Outcome.SPLIT:
            if self.seller_minor is None or self.seller_minor >= amount:
                raise BadDecision(f"a split says what the seller gets: seller_minor, from 1 to {amount - 1}")
            return self.seller_minor
        if self.seller_minor is not None:
            raise BadDecision("only a split has seller_minor: leave it out")
        return amount if self.outcome is Outcome.RELEASE else 0


class Order(BaseModel):
    """The payload of an execution: which decision is to be carried out."""

    transaction_receipt_id: str
    outcome: Outcome
    dispatch_reference: str | None = None

    @property
    def key(self) -> str:
        """The retry identity: one live execution of an outcome for a receipt, whoever submits it how often."""
        return f"{self.transaction_receipt_id}:{self.outcome}"


class LateDecision(BaseModel):
    """The payload of a decision about a receipt that nobody knew."""

    transaction_receipt_id: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class Receipt:
    """A row of ``receipt``; the names are those of its columns."""

    transaction_receipt_id: str
    buyer: str
    seller: str
    amount_minor: int
    currency: str
    escrow_adjudication: str | None
    seller_minor: int | None
    adjudicated_by: str | None
    adjudicated_at: Any
    settlement_progression_status: str
    settlement_progression_reason_code: str | None
    settlement_progression_reason: str | None
    dispute_lifecycle_status: str
    execution_event_id: str | None
    dispatch_reference: str | None
    submitted_at: Any
    executed_at: Any

    @property
    def is_executed(self) -> bool:
        return self.settlement_progression_status == Progress.EXECUTED

    def check(self, decision: Decision) -> int:
        """Refuse what contradicts the decision that stands; return what the seller gets."""
        share = decision.share(self.amount_minor)
        stands = (self.escrow_adjudication, self.seller_minor)
        if self.escrow_adjudication is not None and stands != (decision.outcome, share):
            raise Conflict(
                f"receipt {self.transaction_receipt_id} is adjudicated: {self.escrow_adjudication} "
                f"({self.seller_minor} of {self.amount_minor} to the seller), by {self.adjudicated_by}; that stays"
            )
        return share


@dataclass(frozen=True, slots=True)
class Instruction:
    """What your own ``ADJUDICATION_DISPATCH`` function is called with.

    It may be called again after a crash: hand ``key`` on as the idempotency key of whatever moves the money.
    """

    key: str
    transaction_receipt_id: str
    outcome: str
    buyer: str
    seller: str
    to_buyer_minor: int
    to_seller_minor: int
    currency: str
    dispatch_reference: str | None

    @classmethod
    def of(cls, order: Order, receipt: Receipt) -> "Instruction":
        to_seller = receipt.seller_minor or 0
        return cls(
            order.key, receipt.transaction_receipt_id, order.outcome.value, receipt.buyer, receipt.seller,
            receipt.amount_minor - to_seller, to_seller, receipt.currency, order.dispatch_reference,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """A receipt with all that belongs to it, as JSON."""

    receipt: Mapping[str, Any]
    execution: Mapping[str, Any] | None
    trail: list[Mapping[str, Any]]
    entries: list[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {**self.receipt, "execution": self.execution, "trail": self.trail, "entries": self.entries}


class AdjudicationError(Exception):
    """Base of what the desk refuses."""


class UnknownReceipt(AdjudicationError):
    """Nobody has submitted this receipt."""


class Conflict(AdjudicationError):
    """It contradicts what is recorded."""


class BadDecision(AdjudicationError):
    """It does not fit the receipt."""
