"""What a device is, how every vendor registers, asks for and fits it, and what a placement costs."""
