"""`melon bridge`: events from a broker into a service."""

from __future__ import annotations

from typing import Annotated

import typer


def bridge(
    source: Annotated[
        str, typer.Argument(help="nats://HOST:PORT/STREAM, tls://HOST:PORT/STREAM or kafka://HOST:PORT/TOPIC.")
    ],
    service: Annotated[str, typer.Argument(help="The address of the service, such as http://127.0.0.1:8000.")],
    key: Annotated[
        str | None, typer.Option(envvar="MELON_KEY", help="A key of the service with the scope write, if it has keys.")
    ] = None,
    group: Annotated[
        str, typer.Option(help="The durable consumer (NATS) or consumer group (Kafka) that remembers how far it is.")
    ] = "melon",
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing waits any more.")] = False,
) -> None:
    """Take events from a NATS JetStream or a Kafka topic to a service, each exactly once.

    A message is a JSON object as POST /v1/interactions takes it; its place in the source is its event_id. It is
    acknowledged after the service has synced it, so what is delivered again is known. A message that is no event is
    named and left out. NATS is tested against the real server, which is killed; Kafka against librdkafka's mock broker
    only.
    """
    import logging
    import signal

    from melon.client import Client
    from melon.service.bridge import Bridge, read_source

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    wanted = read_source(source)
    with Client(service, key=key, deadline=5.0) as client:
        running = Bridge(wanted, client, group, drain)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: running.stopping.set())
        running.run()
    typer.echo(
        f"{wanted.shown}: {running.accepted} events appended, {running.known} were known already, "
        f"{running.refused} were left out"
    )
