"""`pml keys`: keys of HTTP clients and tokens of the owner, made, listed and revoked; each is shown once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from pml_gateway.cli.completion import client_names
from pml_gateway.cli.consent import Consent, YesOption
from pml_gateway.cli.context import Command, ConfigOption, JsonOption, bring_up_to_date
from pml_gateway.cli.output import note, print_json, print_table, say
from pml_gateway.cli.stats import seconds_of
from pml_gateway.config.problems import client_entry
from pml_gateway.errors import UsageError
from pml_gateway.policy.keys import ClientKey, KeyStore
from pml_gateway.text import counted, span
from pml_gateway.types import JsonObject

keys_app = typer.Typer(name="keys", no_args_is_help=True)

ClientArgument = Annotated[
    str | None, typer.Argument(metavar="[CLIENT]", help="An entry of clients:.", autocompletion=client_names)
]
OWNER = "(the owner)"


@keys_app.callback()
def keys() -> None:
    """Make, list and revoke keys of clients over HTTP, and tokens of yours. Only hashes are kept, in ~/.pml/keys.json.

    A client may have several, so that a key is replaced without a gap: add one, give it to the client, and revoke the
    old one. Running gateways follow within a second. A key in the configuration (clients.NAME.key) is not among them.

    Example: pml keys list
    """


@keys_app.command("add")
def add_key(
    client: ClientArgument = None,
    is_owners: Annotated[
        bool, typer.Option("--owner", help="A token of yours instead, for approvals and the console over HTTP.")
    ] = False,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="SPAN", help="When it ends: 12h, 90d, 52w. Never without it.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key for a client, or a token for yourself, and print it, this one time.

    Example: pml keys add ci --expires 90d
    """
    if (client is None) is not is_owners:
        raise UsageError("it is not clear whose the key is", hint="pml keys add CLIENT, or --owner")
    settings = Command(config).load().settings
    store = _stores(config)[is_owners]
    if client is not None:
        client_entry(settings, client)
    ends = None
    if expires is not None:
        ends = datetime.now(UTC) + timedelta(seconds=seconds_of(expires, "--expires"))
    made = store.add(client or "", ends)
    if as_json:
        print_json({**_object(made.key_id, made.key, None), "key": made.text})
        return
    say(made.text)
    what, sender = ("your token", "you send") if is_owners else ("the key", f"{client} sends")
    note(f"{what} {made.key_id}, {_end(made.key)}; it is not shown again")
    note(f"{sender} it as: Authorization: Bearer {'TOKEN' if is_owners else 'KEY'}")
    if is_owners:
        note("whoever has it may approve calls, and add servers in a console over HTTP: give it to no client")


@keys_app.command("list")
def list_keys(
    client: Annotated[
        str | None,
        typer.Argument(metavar="[CLIENT]", help="Of this client alone.", autocompletion=client_names),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the keys by their ids: whose they are, when they end, and when they were last used.

    Example: pml keys list
    """
    settings = Command(config).load().settings
    clients, owner = _stores(config)
    found = {key_id: key for key_id, key in {**clients.all(), **owner.all()}.items() if client in (None, key.client)}
    if client is not None and not found:
        client_entry(settings, client)
    uses = clients.uses()
    if as_json:
        print_json({"keys": [_object(key_id, key, uses.get(key_id)) for key_id, key in found.items()]})
        return
    if not found:
        note("there are no keys; pml keys add CLIENT makes one")
        return
    print_table(
        ("ID", "CLIENT", "MADE", "ENDS", "LAST USED"),
        [
            (key_id, _owner(key, settings.clients), _ago(key.created_at), _end(key), _ago(uses.get(key_id)))
            for key_id, key in found.items()
        ],
    )


@keys_app.command("revoke")
def revoke_keys(
    key_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="As `pml keys list` has them.")] = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="NAME", help="All keys of a client.", autocompletion=client_names)
    ] = None,
    is_owners: Annotated[bool, typer.Option("--owner", help="All tokens of yours.")] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke keys: their next requests are refused, and what they have open ends within a second.

    Example: pml keys revoke 3f9a01c2 --yes
    """
    Command(config).load()
    stores = _stores(config)
    known = {**stores[False].all(), **stores[True].all()}
    if [bool(key_ids), client is not None, is_owners].count(True) != 1:
        raise UsageError("it is not clear which to revoke", hint="pml keys revoke ID..., --client NAME, or --owner")
    whose = (is_owners, client or "")
    chosen = list(dict.fromkeys(key_ids or (id_ for id_, key in known.items() if (key.is_owners, key.client) == whose)))
    for key_id in chosen:
        if key_id not in known:
            raise UsageError(f"there is no key {key_id[:40]!r}", hint="pml keys list has the ids")
    shown = ", ".join(f"{key_id} of {known[key_id].client or OWNER}" for key_id in chosen)
    asked = Consent(yes, as_json=as_json)
    is_wanted = bool(chosen) and asked.agrees(f"Revoke {shown}?")
    if is_wanted:
        for of_owner in {known[key_id].is_owners for key_id in chosen}:
            stores[of_owner].revoke([id_ for id_ in chosen if known[id_].is_owners is of_owner])
    if as_json:
        print_json({"keys": chosen, "revoked": is_wanted})
    elif is_wanted:
        note(f"revoked {counted(len(chosen), 'key')}: {shown}")
    elif not chosen:
        note(f"{client or OWNER} has no keys")
    elif asked.is_interactive:
        note("nothing was revoked")
    if chosen:
        asked.refuse_if_impossible(done="revoked", remedy="--yes to revoke it")


def _stores(config: Path | None) -> tuple[KeyStore, KeyStore]:
    """Return the store of the clients' keys and that of the owner's tokens, as they are at all replicas now."""
    command = Command(config)
    documents = command.shared_documents()
    clients = KeyStore(command.paths, command.identity, documents=documents)
    owner = KeyStore(command.paths, command.identity, of_owner=True, documents=documents)
    bring_up_to_date(documents)
    return clients, owner


def _object(key_id: str, key: ClientKey, used: datetime | None) -> JsonObject:
    return {
        "id": key_id,
        "client": None if key.is_owners else key.client,
        "created_at": key.created_at.isoformat(),
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "expired": key.has_expired(datetime.now(UTC)),
        "last_used_at": used.isoformat() if used else None,
    }


def _owner(key: ClientKey, clients: Mapping[str, object]) -> str:
    if key.is_owners:
        return OWNER
    return key.client if key.client in clients else f"{key.client} (not in the configuration)"


def _ago(at: datetime | None) -> str:
    return "never" if at is None else f"{span((datetime.now(UTC) - at).total_seconds())} ago"


def _end(key: ClientKey) -> str:
    if key.expires_at is None:
        return "never ends"
    seconds = (key.expires_at - datetime.now(UTC)).total_seconds()
    return f"ends in {span(seconds)}" if seconds > 0 else f"ended {span(-seconds)} ago"
