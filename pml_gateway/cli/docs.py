"""`pml docs`: the pages that come with the gateway, rendered for a person or as the Markdown they are."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated

import typer

from pml_gateway.cli.completion import topic_names
from pml_gateway.cli.context import JsonOption
from pml_gateway.cli.output import ExitCode, answers, note, print_json, print_table
from pml_gateway.docs import Page, deployment_files, page_of, pages, search


def docs(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]", help="The page to show; without one, the topics.", autocompletion=topic_names
        ),
    ] = None,
    word: Annotated[
        str | None, typer.Option("--search", metavar="WORD", help="Show the lines that have it, of TOPIC or of all.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read the documentation. On a terminal a page is laid out in $PAGER; into a file or a pipe it goes as Markdown.

    Example: pml docs modes
    """
    if word is not None:
        _show_hits(word, topic, as_json=as_json)
        return
    if topic is None:
        _show_topics(as_json=as_json)
        return
    if (example := deployment_files().get(topic)) is not None:
        _show_example(topic, example, as_json=as_json)
        return
    page = page_of(topic)
    if as_json:
        print_json({"topic": page.topic, "title": page.title, "text": page.text})
    elif answers().is_terminal:
        _show(page)
    else:
        sys.stdout.write(page.text)


def _show_example(name: str, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": name, "title": name, "text": text})
    else:
        sys.stdout.write(text)


def _show_topics(*, as_json: bool) -> None:
    if as_json:
        print_json(
            {"topics": [{"topic": each.topic, "title": each.title, "summary": each.summary} for each in pages()]}
        )
        return
    print_table(("topic", "what it says"), ((each.topic, each.summary) for each in pages()))
    note("pml docs TOPIC shows one")


def _show_hits(word: str, topic: str | None, *, as_json: bool) -> None:
    hits = search(word, topic)
    if as_json:
        print_json({"word": word, "hits": [asdict(hit) for hit in hits]})
        return
    if not hits:
        note(f"no page has {word!r}; pml docs lists the topics")
        raise typer.Exit(ExitCode.FAILED)
    print_table(("topic", "heading", "line"), ((hit.topic, hit.heading, hit.line) for hit in hits))


def _show(page: Page) -> None:
    # Loads a parser and a highlighter, which no other command needs.
    from pml_gateway.cli.markdown import TerminalMarkdown

    console = answers()
    # As git has it: colours pass, and a page that fits the screen is only printed.
    os.environ.setdefault("LESS", "FRX")
    with console.pager(styles=True) if sys.stdout.isatty() else nullcontext():
        console.print(TerminalMarkdown(page.text))
