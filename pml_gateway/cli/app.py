"""The `pml` command: every command group, mounted."""

from __future__ import annotations

from pml_gateway.cli.activity import activity_app
from pml_gateway.cli.approvals import approvals_app
from pml_gateway.cli.backups import backups_app
from pml_gateway.cli.call import CALL, call
from pml_gateway.cli.clients import clients, connect, disconnect
from pml_gateway.cli.config import config_app, show_reference
from pml_gateway.cli.console import console
from pml_gateway.cli.demo import demo
from pml_gateway.cli.docs import docs
from pml_gateway.cli.doctor import doctor
from pml_gateway.cli.enrich import enrich
from pml_gateway.cli.evaluate import eval_app
from pml_gateway.cli.example_queries import example_queries_app
from pml_gateway.cli.init import init
from pml_gateway.cli.inspect import schema, search
from pml_gateway.cli.keys import keys_app
from pml_gateway.cli.local import down, restart, up
from pml_gateway.cli.migrate import migrate_app
from pml_gateway.cli.program import program, run
from pml_gateway.cli.prompts_and_resources import prompts, resources, skills
from pml_gateway.cli.rules import rules_app
from pml_gateway.cli.secrets import secrets_app
from pml_gateway.cli.serve import serve
from pml_gateway.cli.servers import AddCommand, add, disable, enable, remove, rename
from pml_gateway.cli.service import service_app
from pml_gateway.cli.sets import sets_app
from pml_gateway.cli.stats import stats
from pml_gateway.cli.status import status
from pml_gateway.cli.tokens import tokens
from pml_gateway.cli.tools import tools
from pml_gateway.cli.trust import trust_app
from pml_gateway.cli.upstreams import login, logout, logs, refresh, upstreams_app
from pml_gateway.cli.workflow import workflow_app

app = program()

app.command()(demo)
app.command()(init)
app.command(cls=AddCommand)(add)
app.command()(remove)
app.command()(enable)
app.command()(disable)
app.command()(rename)
app.command()(clients)
app.command()(connect)
app.command()(disconnect)
app.command()(status)
app.command()(console)
app.command()(up)
app.command()(down)
app.command()(restart)
app.add_typer(service_app)
app.add_typer(secrets_app)
app.add_typer(keys_app)
app.add_typer(backups_app)
app.command()(doctor)
app.command()(docs)
app.command()(serve)
app.command()(tools)
app.command()(search)
app.command()(schema)
app.command()(enrich)
app.command()(prompts)
app.command()(resources)
app.command()(skills)
app.command(**CALL)(call)
app.command()(tokens)
upstreams_app.command()(logs)
upstreams_app.command()(login)
upstreams_app.command()(logout)
app.add_typer(upstreams_app)
app.command()(refresh)
app.command()(stats)
app.add_typer(activity_app)
app.add_typer(migrate_app)
config_app.command("reference")(show_reference)
app.add_typer(config_app)
app.add_typer(eval_app)
app.add_typer(workflow_app)
app.add_typer(sets_app)
app.add_typer(trust_app)
app.add_typer(rules_app)
app.add_typer(approvals_app)
app.add_typer(example_queries_app)


def main() -> None:
    """Run the command line."""
    run(app)
