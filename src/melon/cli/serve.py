"""Commands of the live service: serve, keys, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from melon.cli.options import AsJson, Commands

_WHERE, _WHAT, _DOORS = "Where", "Events", "Other clients"
keys = Commands(help="Keys of a service: add, list and revoke them while it runs.", no_args_is_help=True)

MaybeModel = Annotated[
    Path | None, typer.Argument(help="The folder of a saved model; without one the service starts cold.")
]
Config = Annotated[Path | None, typer.Option(help="A TOML file with settings; --show-config prints one.")]
Data = Annotated[
    Path | None,
    typer.Option(help="The folder of the log and of checkpoints. (default: MODEL.live)", rich_help_panel=_WHERE),
]


LogAddress = Annotated[
    str | None,
    typer.Option(
        metavar="postgresql://…",
        help="A database for the log, shared by processes on any machine. An address with a password belongs into "
        "the environment (MELON_SERVE_LOG) or a file: others can see a command line.",
        rich_help_panel=_WHERE,
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        help="The address to listen on; all except loopback need keys. (default: 127.0.0.1)", rich_help_panel=_WHERE
    ),
]
Port = Annotated[int | None, typer.Option(help="The port; 0 takes a free one. (default: 8000)", rich_help_panel=_WHERE)]
Learn = Annotated[
    str | None, typer.Option(help="Event types that are learned. (default: view,click,buy)", rich_help_panel=_WHAT)
]
Hide = Annotated[
    str | None,
    typer.Option(help="Event types that hide an item from the user. (default: dislike,owned)", rich_help_panel=_WHAT),
]
Store = Annotated[
    str | None, typer.Option(help="Event types that are stored only. (default: impression)", rich_help_panel=_WHAT)
]


def serve(
    model: MaybeModel = None,
    config: Config = None,
    data: Data = None,
    log: LogAddress = None,
    host: Host = None,
    port: Port = None,
    learn: Learn = None,
    hide: Hide = None,
    store: Store = None,
    gorse: Annotated[
        bool, typer.Option("--gorse", help="Also answer the clients of Gorse under /api.", rich_help_panel=_DOORS)
    ] = False,
    segment: Annotated[
        bool,
        typer.Option("--segment", help="Also accept the clients of Segment and RudderStack.", rich_help_panel=_DOORS),
    ] = False,
    challenger: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=MODEL", help="A model that learns beside the served one. Repeatable."),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=10%", help="The share of users who get a challenger's lists. Repeatable."),
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting. Repeatable.")
    ] = None,
    role: Annotated[str, typer.Option(help="all, or one of the processes alone: learner, api.")] = "all",
    tenant: Annotated[
        list[str] | None, typer.Option(help="Serve this tenant of the settings file only. Repeatable.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Replay a made-up news site into a new service.")] = False,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print the settings as a TOML file and exit.")
    ] = False,
) -> None:
    """Serve recommendations over HTTP, and learn from interactions within a second.

    Starts one learner and one API process and restarts them. Ctrl-C stops both in order: open requests are
    finished, what was posted is committed, learned and saved. A settings file may have tenants, each with a model,
    log, keys and limits of its own at /t/NAME/.
    """
    from melon.errors import require_serving, unknown_name
    from melon.progress import say

    require_serving("melon serve")
    from melon.service.config import read_service

    named = {"model": model, "data": data, "log": log, "host": host, "port": port}
    named |= {"learn": learn, "hide": hide, "store": store, "gorse": gorse or None, "segment": segment or None}
    named["challengers"] = ",".join(challenger) if challenger else None
    named["split"] = ",".join(split) if split else None
    given = {**_assigned(assignments), **{k: v for k, v in named.items() if v is not None}}
    settings, tenants = read_service(config, given)
    for name in tenant or ():
        if name not in tenants:
            raise unknown_name("tenant", name, tenants)
    tenants = {name: one for name, one in tenants.items() if not tenant or name in tenant}
    if show_config:
        typer.echo(settings.toml(), nl=False)
        for name, one in tenants.items():
            typer.echo(f"\n[tenants.{name}]\n{one.toml(settings)}", nl=False)
        return
    if role not in ("all", "learner", "api"):
        raise unknown_name("role", role, ("all", "learner", "api"))
    from melon.service.supervisor import (
        Supervisor,
        await_database,
        check_free,
        check_model,
        check_reachable,
        greeting,
        listen,
        run_role,
    )

    if demo:
        from melon.service.demo import run_demo_service

        run_demo_service(settings)
        return
    for one in tenants.values() or (settings,):
        check_model(one)
        if one.log is None or not tenants:  # one tenant's database that is away must not keep others waiting
            await_database(one, say)
            check_reachable(one)
    if role != "all" and not tenants:
        run_role(role, settings)
        return
    roles = ("learner", "api") if role == "all" else (role,)
    if role == "all":
        for one in tenants.values() or (settings,):
            check_free(one.folder)
    supervisor = Supervisor(settings, listen(settings) if "api" in roles else None, tenants=tenants, roles=roles)

    def greet(url: str) -> None:
        for name, one in tenants.items() or (("", settings),):
            say(greeting(url, one, name))

    supervisor.run(greet)


def doctor(
    model: MaybeModel = None,
    config: Config = None,
    data: Data = None,
    log: LogAddress = None,
    forgotten: Annotated[str | None, typer.Option(help="Look for this user's id in every file of the service.")] = None,
    json: AsJson = False,
) -> None:
    """Check what a service needs: extras, SQLite, disk, log, checkpoints, keys; also that a person is forgotten."""
    from melon.errors import require_serving

    require_serving("melon doctor")
    from melon.service.config import read_settings
    from melon.service.doctor import examine

    findings = examine(read_settings(config, {"model": model, "data": data, "log": log}), forgotten)
    if json:
        import json as text

        typer.echo(text.dumps([one._asdict() for one in findings]))
    else:
        for one in findings:
            typer.echo(f"{'ok   ' if one.ok else 'FAULT'}  {one.what}: {one.found}")
    if not all(one.ok for one in findings):
        raise typer.Exit(1)


def backup(
    folder: Annotated[Path, typer.Argument(help="The folder of the service; it may be running.")],
    out: Annotated[Path, typer.Argument(help="A new folder for the backup.")],
) -> None:
    """Copy a service's log, steps, facts and newest checkpoint while it runs; keys are not copied.

    Everything that was acknowledged before the command is in the backup.
    """
    from melon.errors import require_serving

    require_serving("melon backup")
    from melon.service.log.backup import back_up

    done = back_up(folder, out)
    model = (
        "no model yet" if done.checkpoint is None else f"steps up to {done.step}, the model of step {done.checkpoint}"
    )
    typer.echo(f"wrote {out}: {done.events} events up to offset {done.offset}, {model}")


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="A folder that melon backup wrote.")],
    folder: Annotated[Path, typer.Argument(help="The folder of the service; it must not be running.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Move the present content of FOLDER aside, and keep its keys.")
    ] = False,
) -> None:
    """Restore a service's folder from a backup; people forgotten since are forgotten again, if the log has them."""
    from melon.errors import require_serving

    require_serving("melon restore")
    from melon.service.log.backup import restore as bring_back

    done = bring_back(source, folder, replace=replace)
    typer.echo(
        f"restored {folder}: {done.backup.events} events up to offset {done.backup.offset}; later events are lost"
    )
    if done.before is not None:
        typer.echo(f"the former content is in {done.before}; delete it when it is not needed any more")
        typer.echo(f"{done.forgotten} people forgotten since the backup will be forgotten when the service runs")
    if done.before is None or done.unknown:
        count = "people" if done.before is None else f"{done.unknown} of them or more, who"
        typer.echo(f"{count} forgotten since the backup cannot be known from it: forget them again (melon log forget)")
    if done.backup.keyed and not (folder / "keys.json").exists():
        typer.echo(f"the service had keys, which no backup holds: make new ones with melon keys add --data {folder}")


@keys.command("add")
def keys_add(
    scope: Annotated[list[str], typer.Option(help="read, write or admin. Repeatable.")],
    data: Data = None,
    log: LogAddress = None,
    config: Config = None,
    days: Annotated[float | None, typer.Option(help="The key expires after this many days. (default: never)")] = None,
    note: Annotated[str, typer.Option(help="What the key is for.")] = "",
) -> None:
    """Make a key and print it; only its digest is stored, so it is shown once."""
    typer.echo(_keys(config, data, log).add(scope, days=days, note=note)[0])


@keys.command("list")
def keys_list(data: Data = None, log: LogAddress = None, config: Config = None) -> None:
    """List keys: id, scopes, end and note."""
    import datetime

    for key in _keys(config, data, log).read().values():
        end = "never" if key.expires is None else f"{datetime.datetime.fromtimestamp(key.expires, datetime.UTC):%F}"
        typer.echo(f"{key.id}  {','.join(key.scopes):16}  ends {end}  {key.note}".rstrip())


@keys.command("revoke")
def keys_revoke(
    key: Annotated[str, typer.Argument(help="The key's id, the part between the two underscores.")],
    data: Data = None,
    log: LogAddress = None,
    config: Config = None,
) -> None:
    """Remove a key; a running service refuses it within a second."""
    _keys(config, data, log).revoke(key)


def _keys(config: Path | None, data: Path | None, log: str | None) -> Any:
    """The file of keys of the service that these settings are of."""
    from melon.errors import SettingsError, require_serving

    require_serving("melon keys")
    from melon.service.config import read_settings
    from melon.service.keys import keys_of

    settings = read_settings(config, {"data": data, "log": log})
    if settings.keys is None and settings.log is None and settings.data is None and settings.model is None:
        raise SettingsError("which service? Give --data FOLDER, --log ADDRESS, or --config FILE with its settings.")
    return keys_of(settings)


def _assigned(assignments: list[str] | None) -> dict[str, Any]:
    import tomllib

    from melon.errors import SettingsError

    values: dict[str, Any] = {}
    for text in assignments or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--set {text} is not valid; write --set NAME=VALUE.")
        try:
            values[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[name.strip()] = value
    return values
