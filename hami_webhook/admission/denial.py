"""A refusal, as the AdmissionResponse carries it."""

from __future__ import annotations

from collections.abc import Sequence

from hami_webhook.devices.model import BadRequest


class Denied(Exception):
    """The pod is refused: an HTTP status code and reason in Kubernetes' sense, and the sentence for the user.

    `retry_after` (seconds) is set where trying again may help. `cause` is what a metric counts the refusal under:
    `quota`, `policy`, `request`, `unavailable` or `failure`.
    """

    def __init__(
        self, code: int, message: str, *, reason: str = "", cause: str = "", retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or _REASONS.get(code, "InternalError")
        self.cause = "unavailable" if code == 503 else cause or "request"
        self.retry_after = retry_after
        self.warnings: Sequence[str] = ()
        """What the creator of the pod is warned of besides."""


def bad_request(error: BadRequest) -> Denied:
    """Return a final refusal: 422, because HAMi's 500 means a retry. kubectl shows no message of reason Invalid."""
    return Denied(422, str(error), reason="BadRequest")


_REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    408: "Timeout",
    409: "AlreadyExists",
    413: "RequestEntityTooLarge",
    422: "Invalid",
    500: "InternalError",
    503: "ServiceUnavailable",
}
