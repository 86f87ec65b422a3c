"""What a device is, how every vendor registers, requests and fits it, and what a placement costs."""
