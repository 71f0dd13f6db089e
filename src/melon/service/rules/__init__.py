"""What shops want from a list: facts about items, filters, boosts, pins, caps, diversity and rotation."""
