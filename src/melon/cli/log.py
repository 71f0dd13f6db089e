"""`melon log`: look at a service's log, check it, take it again, and bring events out and in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from melon.cli.options import AsJson, Commands

log = Commands(
    help="Look at the log of a service, check it, replay it, and bring events out and in.", no_args_is_help=True
)

Folder = Annotated[
    str,
    typer.Argument(help="The folder of the service, or the address of its database (postgresql://…)."),
]
Running = Annotated[Path, typer.Argument(help="The folder of a service that runs on this machine.")]
KeyOption = Annotated[
    str | None, typer.Option(envvar="MELON_KEY", help="A key of the service that runs there, if it has keys.")
]


@log.command("info")
def log_info(folder: Folder, json: AsJson = False) -> None:
    """Describe a log: its content, the position of the learner, versions; a running service is not disturbed."""
    from melon.service.learner.replaying import describe
    from melon.service.log.files import Place

    about = describe(Place.of(folder))
    if json:
        import json as encoder

        typer.echo(encoder.dumps(about, ensure_ascii=False))
        return
    for name, value in about.items():
        lines = value if isinstance(value, list) else [value]
        for number, line in enumerate(lines or ["none"]):
            typer.echo(f"{name if not number else '':<14}{line}")


@log.command("verify")
def log_verify(folder: Folder) -> None:
    """Check files, order, boundaries and checkpoints, and replay everything: the bytes must equal the recorded ones."""
    from melon.service.learner.replaying import verify
    from melon.service.log.files import Place

    for line in verify(Place.of(folder)):
        typer.echo(line)


@log.command("replay")
def log_replay(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="Where to save the model.")],
    to: Annotated[
        str | None, typer.Option(metavar="OFFSET|TIME", help="The model as of an offset, or of a time (ISO 8601).")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="USER", help="Leave a user's events out. Repeatable.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="Learn with another strategy.")] = None,
) -> None:
    """Rebuild a model from the recorded batches of the log: up to a time, without a person, or by another strategy."""
    from melon.atomic import require_writable
    from melon.service.learner.replaying import replay
    from melon.service.log.events import LogReader
    from melon.service.log.exchange import typed
    from melon.service.log.files import Place
    from melon.strategies.registry import STRATEGIES

    require_writable(out / "model")
    if strategy is not None:
        STRATEGIES[strategy]  # an unknown name is refused before anything is spent
    with LogReader(Place.of(folder)) as reader:
        users = [typed(user, reader) for user in without or ()]
    offset = int(to) if to is not None and to.isdigit() else None
    replayed = replay(
        Place.of(folder), offset=offset, moment=None if to is None or offset is not None else _moment(to),
        without=users, strategy=strategy,
    )  # fmt: skip
    replayed.model.save(out, replayed.extra)
    exact = "the bytes are those that were recorded" if replayed.exact else "a past that was not"
    typer.echo(f"replayed to step {replayed.position.batch}, offset {replayed.position.offset}: {exact}; wrote {out}")


@log.command("export")
def log_export(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="The file to write. (default: standard output)")] = None,
    first: Annotated[int, typer.Option("--from", help="The first offset.")] = 1,
    to: Annotated[int | None, typer.Option(help="The last offset. (default: the last of the log)")] = None,
) -> None:
    """Write events as lines of JSON, in order of their offsets."""
    from melon.atomic import replacing
    from melon.service.log.events import LogReader
    from melon.service.log.exchange import exported
    from melon.service.log.files import Place

    with LogReader(Place.of(folder)) as reader:
        lines = exported(reader, first, reader.last()[0] if to is None else to)
        if out is None:
            sys.stdout.writelines(f"{line}\n" for line in lines)
            return
        with replacing(out) as unfinished, unfinished.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    typer.echo(f"wrote {out}")


@log.command("import")
def log_import(
    folder: Folder,
    source: Annotated[
        str,
        typer.Argument(
            help="Lines of JSON (as melon log export writes them), .csv, .tsv, .parquet or Gorse's export; or a "
            "database: postgresql://…, sqlite:///FILE."
        ),
    ],
    query: Annotated[str | None, typer.Option(help="A SELECT of users, items and event ids for the database.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=NAME", help="The column of a role: user, item, time, type, event_id. Repeatable."),
    ] = None,
    event_type: Annotated[str, typer.Option("--type", help="The type of events that have none.")] = "view",
    time_unit: Annotated[str, typer.Option(help="The unit of times that are numbers: s, ms, us, ns.")] = "s",
    name: Annotated[
        str | None, typer.Option(help="The source's name in event ids, NAME/ROW. (default: the file's name)")
    ] = None,
    learn: Annotated[str | None, typer.Option(help="Event types that are learned, as for melon serve.")] = None,
    hide: Annotated[str | None, typer.Option(help="Event types that hide an item from the user.")] = None,
    store: Annotated[str | None, typer.Option(help="Event types that are stored only.")] = None,
    key: KeyOption = None,
) -> None:
    """Append events from a file or a query; an event_id that the log knows is not stored again.

    An event of a file without an id gets its place in it as one, so an import may be repeated; rows of a query need
    ids. Where a service runs in the folder, the events are posted to it, and it decides what types are for.
    """
    from melon.client import Client
    from melon.errors import HeldError, SettingsError
    from melon.service.config import read_settings
    from melon.service.importing import Reading, describes, events_of, import_described
    from melon.service.log.events import EventLog
    from melon.service.log.exchange import imported, kinds_of, over_http
    from melon.service.log.files import Place

    columns = dict(text.partition("=")[::2] for text in column or ())
    for role, named in columns.items():
        if role not in ("user", "item", "time", "type", "event_id") or not named:
            raise SettingsError(f"--column {role}={named} is not ROLE=NAME with user, item, time, type or event_id.")
    if time_unit not in ("s", "ms", "us", "ns"):
        raise SettingsError(f"--time-unit {time_unit} must be s, ms, us or ns.")
    uses = read_settings(None, {"learn": learn, "hide": hide, "store": store}).uses()
    file = None if "://" in source else Path(source)
    if query and file:
        raise SettingsError(f"--query is for databases, and {file} is a file.")
    named = name or ("" if file is None else file.name)
    reading = Reading(named, uses, columns, event_type, time_unit, query, kinds_of(Place.of(folder)))
    try:
        with EventLog(Place.of(folder)) as opened:
            if file is not None and (kind := describes(file)):
                typer.echo(f"{import_described(opened, file, kind)} {kind}s stored")
                return
            done = imported(opened.submit, events_of(file or source, reading))
    except HeldError as held:
        if held.url is None:
            raise
        if file is not None and (kind := describes(file)):
            raise SettingsError(
                f"{file} describes {kind}s; stop the service on {held.url} first, or POST them to /api/{kind}s."
            ) from None
        with Client(held.url, key=_key(key, Place.of(folder).folder)) as client:
            done = imported(over_http(client), events_of(file or source, reading))
    typer.echo(
        f"{done.accepted} events appended up to offset {done.offset}, {done.duplicates} were known already, "
        f"{done.conflicting} have the id of another event and were left out"
    )


@log.command("copy")
def log_copy(
    folder: Folder,
    target: Annotated[str, typer.Argument(help="An empty folder, or a database (postgresql://…?schema=NAME).")],
) -> None:
    """Copy a service that does not run: from a folder into a database, or back. Keys are not copied."""
    from melon.errors import require_serving

    require_serving("melon log copy")
    from melon.service.log.exchange import copied
    from melon.service.log.files import Place

    place = Place.of(target)
    events, steps = copied(Place.of(folder), place)
    typer.echo(f"copied {events} events and {steps} steps to {place}; check with melon log verify")


@log.command("forget")
def log_forget(
    folder: Folder, user: Annotated[str, typer.Argument(help="The user's id.")], key: KeyOption = None
) -> None:
    """Forget a person: rows, history, and ids in the log and in all checkpoints.

    If a service runs in the folder, it does so at once; otherwise at its next start.
    """
    from melon.client import Client
    from melon.errors import HeldError
    from melon.service.log.events import EventLog, LogReader
    from melon.service.log.exchange import typed
    from melon.service.log.files import Place

    with LogReader(Place.of(folder)) as reader:
        named = typed(user, reader)
    try:
        with EventLog(Place.of(folder)) as opened:
            offset, when = opened.forget(named).result(), "when the learner next runs"
    except HeldError as held:
        if held.url is None:
            raise
        with Client(held.url, key=_key(key, Place.of(folder).folder)) as client:
            offset, when = client.forget(named)["offset"], f"by the service on {held.url}"
    typer.echo(f"{user} will be forgotten at offset {offset}, {when}")


def promote(
    name: Annotated[str, typer.Argument(help="The challenger's name.")], folder: Running, key: KeyOption = None
) -> None:
    """Serve a challenger from now on; the former model continues to learn, for a rollback."""
    from melon.client import Client
    from melon.service.log.files import address_of

    with Client(address_of(folder), key=_key(key, folder)) as client:
        typer.echo(f"{name} is served from offset {client.promote(name)['offset']} on, once the learner has reached it")


def rollback(folder: Running, key: KeyOption = None) -> None:
    """Serve the model from before the last promotion again; it has learned everything since."""
    from melon.client import Client
    from melon.service.log.files import address_of

    with Client(address_of(folder), key=_key(key, folder)) as client:
        typer.echo(
            f"the model before is served from offset {client.rollback()['offset']} on, once the learner has reached it"
        )


def _key(given: str | None, folder: Path) -> str | None:
    """The key to send: the one that was given, or the token that only the service's user can read."""
    from melon.service.keys import local_token

    return given or local_token(folder)


def _moment(text: str) -> float:
    from datetime import UTC, datetime

    from melon.errors import SettingsError

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"--to {text!r} is neither an offset nor a time such as 2026-11-16T18:05:00Z.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def bridge(
    source: Annotated[
        str, typer.Argument(help="nats://HOST:PORT/STREAM, tls://HOST:PORT/STREAM or kafka://HOST:PORT/TOPIC.")
    ],
    service: Annotated[str, typer.Argument(help="The address of the service, such as http://127.0.0.1:8000.")],
    key: Annotated[
        str | None, typer.Option(envvar="MELON_KEY", help="A key of the service with the scope write, if it has keys.")
    ] = None,
    group: Annotated[
        str, typer.Option(help="The durable consumer (NATS) or consumer group (Kafka) that stores the position.")
    ] = "melon",
    drain: Annotated[bool, typer.Option("--drain", help="End when no message waits.")] = False,
) -> None:
    """Send events from NATS JetStream or a Kafka topic to a service, each exactly once.

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
