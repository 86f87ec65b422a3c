"""Whether an installation works, link by link: from the webhook configuration to a bound pod."""
