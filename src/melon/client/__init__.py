"""Clients of the service: `melon.Client`, `melon.AsyncClient`, and the results they return."""

from melon.client.calls import Item, Listed, Recorded
from melon.client.connections import AsyncClient, Buffer, Client

__all__ = ["AsyncClient", "Buffer", "Client", "Item", "Listed", "Recorded"]
