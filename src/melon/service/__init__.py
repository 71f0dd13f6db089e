"""The live service: events in, fresh recommendations out, nothing lost."""
