"""Paraphrases: turns the definition of a tool that nobody asked for yet into texts that would ask for it."""

from __future__ import annotations

import random
import re

from pml_gateway.index.text import ToolDocument, split_words

KEYWORDS = (2, 6)
"""An agent's search string has between two and six words."""

SYNONYM_SHARE = 0.5
"""Of the words with synonyms this share is replaced: a query then shares some words with its tool, not all."""

LONGEST_PHRASE = 240

_SENTENCE_END = re.compile(r"(?<=[.!?。])\s+|\n+|。")
_MARKUP = re.compile(r"[#*`_<>|=]+|\s+")
_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?|[^\w\s]")
_OWNER = re.compile(r"^@?[^_/]*[_/](?=.)")
_GENERIC_SERVER_WORDS = re.compile(r"\b(mcp|server|servers|tool|tools|official|api)\b", re.IGNORECASE)
_FILLER_TEXT = """
a an the of in on at by for from to with and or is are be this that it its as into using use used via your you their
given specified specific provided tool function allows allow can will when based all any if not
"""
_FILLERS = frozenset(_FILLER_TEXT.split())

_SYNONYM_GROUPS = """
get fetch|retrieve|show me|look up|read|give me|pull
retrieve get|fetch|find|look up|show
fetch get|retrieve|download|pull|read
list show all|enumerate|what are the|see all|get all
create make|add|new|set up|open|start
add insert|put|attach|include|create
delete remove|get rid of|erase|drop|clean up
remove delete|take away|get rid of|drop
update change|edit|modify|adjust|revise
modify change|edit|alter|adjust
edit change|modify|rewrite
set change|assign|configure|put
search find|look for|look up|query|discover
find look for|search|locate|discover
query search|ask|look up|run a query on
send post|deliver|message|write
run execute|launch|start|perform
execute run|launch|perform|carry out
start launch|begin|run|boot
stop halt|end|shut down|kill
check verify|see whether|test|inspect
verify check|confirm|make sure of
validate check|verify|test whether valid
analyze examine|study|inspect|evaluate
generate make|produce|create|write
convert change|transform|turn
calculate compute|work out|figure out
compute calculate|work out|determine
upload send|push|put up
download fetch|save|get a copy of
open show|launch|bring up
close shut|end|finish
move relocate|transfer|shift
copy duplicate|clone
rename change the name of|give a new name to
merge combine|join|unite
compare contrast|tell the difference between|diff
summarize sum up|condense|give the gist of
translate convert into another language|put into another language
extract pull out|get|take
save store|keep|write down
store save|keep|remember
monitor watch|keep an eye on|track
track follow|monitor|watch
schedule plan|book|arrange
book reserve|schedule
return give|show|get
display show|view|present
view see|show|look at
describe explain|tell me about|show details of
explain describe|tell me about
information details|info|data|facts
details information|specifics|info
current present|latest|right now
available existing|that exist|on offer
file document|text on disk
files documents|things on disk
directory folder
folder directory
repository repo|code project|codebase
issue ticket|bug report|problem
ticket issue|case
message note|text
messages chat history|texts
email mail|message
user person|account|member
users people|accounts|members
image picture|photo
images pictures|photos
video clip|recording
web internet|online
website web page|site
url link|web address|address
price cost|how much is
prices costs|rates
weather forecast|temperature|climate
database db|data store
table relation|sheet
record entry|row|item
records entries|rows|items
task to-do|job|work item
tasks to-dos|jobs|work items
event appointment|meeting
events appointments|meetings
location place|where
error failure|problem|exception
errors failures|problems
log history|trace
logs history|traces|output
account profile
customer client|buyer
order purchase
payment transaction|money transfer
document file|text|page
article story|post|paper
articles stories|posts|papers
news headlines|current events
company business|firm
token coin|key
code program|source
function method|routine
test check|trial
container docker instance|box
"""
_SYNONYMS = {
    word: tuple(alternatives.split("|"))
    for word, _, alternatives in (line.partition(" ") for line in _SYNONYM_GROUPS.strip().splitlines())
}

_REQUESTS = (
    "I need to {}",
    "I want to {}",
    "Can you {}?",
    "Could you please {}?",
    "Please {}.",
    "Help me {}",
    "How do I {}?",
    "Is there a way to {}?",
    "We should {} before we go on",
    "{}",
    "{}",
    "{}",
)
_JOINTS = (" and then ", ", then ", " and ", ". After that, ", ". Also, ", "; finally, ")
_THIRD_PERSON = re.compile(r"^(\w+?)(ies|shes|ches|sses|xes|zes|es|(?<!s)s)$", re.IGNORECASE)


def server_short(server: str) -> str:
    """What a person calls a server: `@owner_exa-search-mcp` is `exa search`."""
    words = split_words(_OWNER.sub("", server) or server)
    return " ".join(_GENERIC_SERVER_WORDS.sub(" ", words).split())


def sentences(description: str) -> list[str]:
    """The sentences of a description without its markup, the first one cut to a phrase's length."""
    parts = (_MARKUP.sub(" ", part).strip(" -:.") for part in _SENTENCE_END.split(description))
    return [part[:LONGEST_PHRASE] for part in parts if part]


def imperative(sentence: str) -> str:
    """`Returns the files` as `return the files`; anything else with a small first letter."""
    first, space, rest = sentence.partition(" ")
    match = _THIRD_PERSON.match(first)
    verb = first.lower() if not first.isupper() else first
    if match:
        stem, ending = match.group(1).lower(), match.group(2).lower()
        for base in (stem + "y" if ending == "ies" else stem + ending[:-2], stem + ending[:-1]):
            if base in _SYNONYMS:
                verb = base
                break
        else:
            verb = stem + ending[:-1] if ending in ("s", "es") and len(stem) > 3 else verb
    return verb + space + rest


def reworded(phrase: str, source: random.Random, share: float = SYNONYM_SHARE) -> str:
    """The phrase with some of its words replaced by synonyms."""
    words = [
        source.choice(_SYNONYMS[word.lower()]) if word.lower() in _SYNONYMS and source.random() < share else word
        for word in phrase.split(" ")
    ]
    return " ".join(words)


def search_string(document: ToolDocument, phrase: str, source: random.Random) -> str:
    """A few key words, as an agent types into a search."""
    words = [word for word in _WORD.findall(phrase) if word[0].isalnum() and word.lower() not in _FILLERS]
    name = split_words(document.name).lower().split()
    pool = list(dict.fromkeys(word.lower() for word in (words[:10] if source.random() < 0.6 else [*name, *words[:6]])))
    if document.parameters and source.random() < 0.2:
        pool.append(split_words(source.choice(document.parameters)).lower())
    chosen = sorted(source.sample(range(len(pool)), min(len(pool), source.randint(*KEYWORDS))))
    text = reworded(" ".join(pool[i] for i in chosen), source, SYNONYM_SHARE / 2)
    server = server_short(document.server)
    return f"{server} {text}" if server and source.random() < 0.3 else text


def task(document: ToolDocument, phrase: str, source: random.Random) -> str:
    """One sentence that asks for what the tool does."""
    server = server_short(document.server)
    if server and source.random() < 0.15:
        phrase += f" {source.choice(('in', 'on', 'with', 'using'))} {server}"
    text = source.choice(_REQUESTS).format(reworded(phrase, source))
    return text[:1].upper() + text[1:] if source.random() < 0.7 else text


def long_task(phrases: list[str], source: random.Random) -> str:
    """Several phrases as the steps of one request."""
    text = reworded(phrases[0], source)
    for phrase in phrases[1:]:
        text += source.choice(_JOINTS) + reworded(phrase, source)
    return source.choice(_REQUESTS[:6]).format(text)
