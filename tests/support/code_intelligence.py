"""A code-intelligence product as four MCP servers: 31 tools as such servers really define them, in their own words."""

from __future__ import annotations

from typing import Any

Parameters = dict[str, Any]

READ = {"readOnlyHint": True, "openWorldHint": False}
WRITE = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
DESTROY = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _number(description: str, default: int, maximum: int) -> dict[str, Any]:
    return {"type": "integer", "description": description, "default": default, "minimum": 1, "maximum": maximum}


def _flag(description: str, default: bool = False) -> dict[str, Any]:
    return {"type": "boolean", "description": description, "default": default}


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


REPO = _text("Name of an indexed repository, as list_repositories gives it")
SYMBOL = _text("Fully qualified name of a symbol, for example `billing.invoice.Invoice.total`")
LIMIT = _number("Maximum number of results to return", 20, 200)
DEPTH = _number("How many levels of the call graph to follow", 1, 10)
PATH = _text("Path of a file relative to the root of the repository")
TASK = _text("Identifier of a task, as create_task returned it")
AGENT = _text("Identifier of a registered agent")
LANGUAGE = _text("Only results in this programming language, for example `python` or `typescript`")
RANGE = {
    "type": "object",
    "description": "A range of lines in a file, both ends included; lines are counted from one",
    "properties": {
        "start_line": {"type": "integer", "minimum": 1, "description": "First line of the range"},
        "end_line": {"type": "integer", "minimum": 1, "description": "Last line of the range"},
    },
    "required": ["start_line", "end_line"],
}


def _tool(
    name: str, title: str, description: str, hints: dict[str, bool], required: Parameters, /, **optional: Any
) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {**required, **optional}}
    if required:
        schema["required"] = list(required)
    return {"name": name, "title": title, "description": description, "inputSchema": schema, "annotations": hints}


QUERY = [
    _tool(
        "search_code",
        "Search code",
        "Search the indexed source code by meaning. Takes a question or a description in plain language and returns "
        "the most relevant functions, classes and files with their locations and a relevance score. Use it when you "
        "do not know the name of what you are looking for.",
        READ,
        {"repo": REPO, "query": _text("What the code should do, in plain language")},
        language=LANGUAGE,
        path_glob=_text("Only files whose path matches this glob, for example `src/**/*.py`"),
        limit=LIMIT,
    ),
    _tool(
        "search_text",
        "Search text",
        "Search the indexed source code for an exact text or a regular expression, as grep does, and return every "
        "matching line with its file and line number. Faster than a search by meaning when the exact text is known.",
        READ,
        {"repo": REPO, "pattern": _text("Text or regular expression to look for")},
        regex=_flag("Whether the pattern is a regular expression"),
        case_sensitive=_flag("Whether upper and lower case are distinguished"),
        path_glob=_text("Only files whose path matches this glob, for example `src/**/*.py`"),
        limit=LIMIT,
    ),
    _tool(
        "find_symbol",
        "Find symbol",
        "Find the definition of a symbol by its name or a part of its name. Returns the kind of each symbol, its "
        "signature, the file and the lines where it is defined, and its documentation if there is any.",
        READ,
        {"repo": REPO, "name": _text("Name of the symbol, or the beginning of it")},
        kind=_text("Only symbols of this kind", enum=["function", "class", "method", "variable", "module"]),
        language=LANGUAGE,
        limit=LIMIT,
    ),
    _tool(
        "find_references",
        "Find references",
        "List every place in the repository where a symbol is used, with the line of code around it. Includes imports, "
        "calls, assignments and type annotations; tests can be left out.",
        READ,
        {"repo": REPO, "symbol": SYMBOL},
        include_tests=_flag("Whether uses in test files are listed too", default=True),
        limit=LIMIT,
    ),
    _tool(
        "get_callers",
        "Get callers",
        "Return the functions that call a given function, directly or through other functions up to the given depth. "
        "Use it to find out what would be affected by a change of the function's behaviour.",
        READ,
        {"repo": REPO, "symbol": SYMBOL},
        depth=DEPTH,
        limit=LIMIT,
    ),
    _tool(
        "get_callees",
        "Get callees",
        "Return the functions that are called by a given function, directly or through other functions up to the given "
        "depth. Calls into third-party packages are listed by package.",
        READ,
        {"repo": REPO, "symbol": SYMBOL},
        depth=DEPTH,
        limit=LIMIT,
    ),
    _tool(
        "get_type_hierarchy",
        "Get type hierarchy",
        "Return the super- and subtypes of a class or an interface as a tree, together with the methods that each of "
        "them overrides. Types of third-party packages end the tree.",
        READ,
        {"repo": REPO, "symbol": SYMBOL},
        direction=_text("Which side of the tree to return", enum=["supertypes", "subtypes", "both"], default="both"),
        depth=DEPTH,
    ),
    _tool(
        "analyze_impact",
        "Analyze impact",
        "Estimate what a change of the given symbols would affect: the callers, the tests that cover them, the public "
        "interfaces involved and the owners of the affected files, with a risk for each.",
        READ,
        {"repo": REPO, "symbols": _texts("Fully qualified names of the symbols that would change")},
        depth=DEPTH,
        include_tests=_flag("Whether affected tests are listed too", default=True),
    ),
    _tool(
        "explain_path",
        "Explain path",
        "Find the shortest chain of calls that leads from one symbol to another and explain each step with the code "
        "around it. Answers how a request gets from an entry point to a certain function.",
        READ,
        {
            "repo": REPO,
            "from_symbol": _text("Fully qualified name of the symbol where the chain starts"),
            "to_symbol": _text("Fully qualified name of the symbol where the chain ends"),
        },
        max_length=_number("Longest chain that is considered, in calls", 8, 30),
    ),
]

CODE = [
    _tool(
        "read_file",
        "Read file",
        "Read a file of an indexed repository at its current or an earlier revision, whole or by a range of lines. "
        "Long files are cut and the answer says where to continue.",
        READ,
        {"repo": REPO, "path": PATH},
        range=RANGE,
        revision=_text("Commit, branch or tag to read the file at; the indexed commit if absent"),
    ),
    _tool(
        "read_symbol",
        "Read symbol",
        "Read the source code of one symbol with its documentation and decorators, without the rest of the file. The "
        "lines around it can be asked for as context.",
        READ,
        {"repo": REPO, "symbol": SYMBOL},
        context_lines=_number("Lines before and after the symbol that are returned too", 1, 100),
        revision=_text("Commit, branch or tag to read the symbol at; the indexed commit if absent"),
    ),
    _tool(
        "apply_edits",
        "Apply edits",
        "Replace ranges of lines in files of the working copy. All edits are applied together or, if one of them does "
        "not fit the current contents of its file, none of them. Returns a unified diff.",
        DESTROY,
        {
            "repo": REPO,
            "edits": {
                "type": "array",
                "description": "The edits, in any order; ranges of one file must not overlap",
                "items": {
                    "type": "object",
                    "properties": {"path": PATH, "range": RANGE, "replacement": _text("The new text of these lines")},
                    "required": ["path", "range", "replacement"],
                },
            },
        },
        dry_run=_flag("Whether only the diff is returned and nothing is written"),
    ),
]

REPOSITORY = [
    _tool(
        "list_repositories",
        "List repositories",
        "List the repositories that are indexed or being indexed, with their languages, their size, the commit that "
        "was indexed and how far an indexing in progress has come.",
        READ,
        {},
        query=_text("Only repositories whose name contains this text"),
        limit=LIMIT,
    ),
    _tool(
        "add_repository",
        "Add repository",
        "Clone a repository from a URL and index it in the background. The name under which it can be queried and the "
        "identifier of the indexing job are returned at once.",
        WRITE,
        {"url": _text("URL of the repository to clone", format="uri")},
        branch=_text("Branch to index; the default branch if absent"),
        name=_text("Name to query the repository by; the last part of the URL if absent"),
    ),
    _tool(
        "remove_repository",
        "Remove repository",
        "Delete a repository's working copy and its whole index from this machine. The repository itself, where it was "
        "cloned from, is not touched. This cannot be undone.",
        DESTROY,
        {"repo": REPO},
    ),
    _tool(
        "reindex",
        "Reindex repository",
        "Fetch the newest commits of a repository and bring its index up to date. Only changed files are parsed again "
        "unless a full run is asked for, which takes minutes for large repositories.",
        WRITE,
        {"repo": REPO},
        full=_flag("Whether every file is parsed again"),
    ),
    _tool(
        "get_history",
        "Get history",
        "Return the commits that changed a file or a directory, newest first, with author, date, message and the "
        "number of changed lines. Renames are followed.",
        READ,
        {"repo": REPO, "path": PATH},
        since=_text("Only commits after this date", format="date"),
        author=_text("Only commits whose author's name or address contains this text"),
        limit=LIMIT,
    ),
    _tool(
        "get_statistics",
        "Get statistics",
        "Return figures about a repository: files and lines per language, the most complex functions, the files that "
        "change most often, test coverage if a report was uploaded, and dependencies with known vulnerabilities.",
        READ,
        {"repo": REPO},
        sections=_texts("Which figures to return; all of them if absent"),
    ),
    _tool(
        "compare_revisions",
        "Compare revisions",
        "Compare two revisions of a repository by symbol instead of by line: which functions, classes and public "
        "interfaces were added, removed, renamed or changed in their signature.",
        READ,
        {
            "repo": REPO,
            "base": _text("Commit, branch or tag to compare from"),
            "head": _text("Commit, branch or tag to compare to"),
        },
        path_glob=_text("Only files whose path matches this glob, for example `src/**/*.py`"),
    ),
]

PRIORITY = _text("How urgent the task is", enum=["low", "normal", "high"], default="normal")
STATUS = ["open", "running", "blocked", "done", "failed"]

TASKS = [
    _tool(
        "register_agent",
        "Register agent",
        "Register an agent under a name with the skills it has, so that tasks can be assigned to it. An agent that is "
        "registered again keeps its identifier.",
        WRITE,
        {"name": _text("Name of the agent"), "skills": _texts("What the agent can do, as short keywords")},
        model=_text("Language model the agent runs on"),
    ),
    _tool(
        "list_agents",
        "List agents",
        "List the registered agents with their skills, the task each of them is working on now and when each was last "
        "heard of.",
        READ,
        {},
        skill=_text("Only agents that have this skill"),
        limit=LIMIT,
    ),
    _tool(
        "create_task",
        "Create task",
        "Create a task with a title and instructions in Markdown. It waits in the queue until it is assigned or an "
        "agent with matching skills takes it, and is not started before the tasks it depends on are done.",
        WRITE,
        {"title": _text("Title of the task, in one line"), "instructions": _text("What has to be done, in Markdown")},
        repo=REPO,
        priority=PRIORITY,
        depends_on=_texts("Identifiers of tasks that have to be done first"),
    ),
    _tool(
        "assign_task",
        "Assign task",
        "Assign a waiting task to a registered agent. A task that is running already is taken from its agent first, "
        "which is told to stop.",
        WRITE,
        {"task_id": TASK, "agent_id": AGENT},
    ),
    _tool(
        "get_task",
        "Get task",
        "Return one task with its instructions, its status, who works on it, the messages that were posted to it and "
        "the artifacts that were attached.",
        READ,
        {"task_id": TASK},
        include_messages=_flag("Whether messages are returned too", default=True),
    ),
    _tool(
        "list_tasks",
        "List tasks",
        "List tasks with their title, status, priority and agent, the most urgent first. Tasks that are done or failed "
        "are listed for thirty days.",
        READ,
        {},
        status=_text("Only tasks in this state", enum=STATUS),
        agent_id=AGENT,
        repo=REPO,
        limit=LIMIT,
    ),
    _tool(
        "update_task",
        "Update task",
        "Set the status or the priority of a task and post a note about the reason. Setting a task to done releases "
        "the tasks that depend on it.",
        WRITE,
        {"task_id": TASK},
        status=_text("The new state of the task", enum=STATUS),
        priority=PRIORITY,
        note=_text("Why it was changed, for the task's history"),
    ),
    _tool(
        "cancel_task",
        "Cancel task",
        "Cancel a task and tell the agent that works on it to stop. Artifacts that are attached already stay. Tasks "
        "that depend on it are blocked until someone changes them.",
        DESTROY,
        {"task_id": TASK},
        reason=_text("Why the task is cancelled, for the task's history"),
    ),
    _tool(
        "post_message",
        "Post message",
        "Post a message to a task, which its agent and everyone who follows the task get. Mention an agent by its "
        "identifier to ask it for an answer.",
        WRITE,
        {"task_id": TASK, "message": _text("The message, in Markdown")},
        mentions=_texts("Identifiers of agents that should answer"),
    ),
    _tool(
        "attach_artifact",
        "Attach artifact",
        "Attach the outcome of a task, such as a patch, a report or a log, so that other agents can read it. Artifacts "
        "are kept for thirty days after the task was done.",
        WRITE,
        {
            "task_id": TASK,
            "name": _text("File name of the artifact"),
            "content": _text("The artifact itself; binary data in base64"),
        },
        media_type=_text("Media type of the content", default="text/plain"),
    ),
    _tool(
        "store_memory",
        "Store memory",
        "Remember something about a repository for later tasks, for example a convention, a decision and the reason "
        "for it, or a trap. Agents are given what fits their task when they start it.",
        WRITE,
        {"repo": REPO, "content": _text("What should be remembered, in one or two sentences")},
        tags=_texts("Keywords to find it by"),
    ),
    _tool(
        "recall_memory",
        "Recall memory",
        "Find what was remembered about a repository by meaning, the most relevant first, with the date, the task and "
        "the agent it came from.",
        READ,
        {"repo": REPO, "query": _text("What to look for, in plain language")},
        tags=_texts("Only what carries all of these keywords"),
        limit=LIMIT,
    ),
]

SERVERS = {"query": QUERY, "code": CODE, "repo": REPOSITORY, "agent": TASKS}
"""Server id to its tools, as `tools/list` gives them."""
