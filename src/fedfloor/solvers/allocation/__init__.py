"""The devices of a round, their radio channels and transmit powers."""
