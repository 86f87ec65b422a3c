"""The role `webhook`: reviews of pods and quotas."""

from __future__ import annotations

from hami_webhook.server.app import Sources, review_routes
from hami_webhook.server.roles import Role, Shared


def webhook_role(shared: Shared) -> Role:
    """Reviews, charged where the core charges."""
    core = shared.core
    return Role(
        review_routes(
            core.admission,
            shared.limits,
            claims=core.claims,
            registry=shared.registry,
            misreadings=lambda quota: [each.text for each in core.view.misreadings(quota)],
            sources=Sources(shared.settings.api_server_cidrs),
        )
    )
