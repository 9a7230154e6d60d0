"""The meaning of names for their values: names are split into words, and the last one decides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from itertools import pairwise

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_GLUED = re.compile(
    # PGPASSWORD, apikey, smtppass, clientid; but not monkey, compass or tokenizer.
    r"(?P<first>.+?)(?P<last>passw(?:or)?ds?|passphrase|passcode|secrets?|tokens?|apikeys?|credentials?|creds|pwd|"
    r"sess(?:ion)?id|connectionstring)|"
    r"(?P<owner>api|auth|access|secret|private|public|master|signing|encryption|licen[cs]e|app|admin|account|user|"
    r"service|subscription|storage|shared|session)(?P<key>keys?)|"
    r"(?P<login>db|smtp|imap|mysql|pg|redis|user|root|admin|my|ftp|mail|mongo|proxy|http|basic|ldap|wifi|ssh|login|"
    r"app|rpc)(?P<pass>pass)|"
    r"(?P<what>client|user|team|account|project|tenant|app|zone|org|page|chat|channel|guild)(?P<id>ids?)"
)

_CODES = ("code", "codes")
_TRIPLES = frozenset({("access", "key", "id"), ("mot", "de", "passe"), ("totp", "secret", "seed")})

WEBHOOK = re.compile(r"webhooks?(?:[-_ ]?ur[li])?\Z", re.IGNORECASE)
"""Names of addresses that are secret as a whole: anyone who knows one can post to it."""


class NameMeaning(Enum):
    """The meaning of the name of a variable, header, option or key for its value."""

    SECRET = "secret"
    """The value is secret, whatever its form."""

    PERHAPS = "perhaps"
    """The value is secret unless it is a plain word, a number or a path: a `session` may be a token or a name."""

    PLAIN = "plain"
    """The value is not secret: a path, an id, a mode."""

    NOTHING = "nothing"


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRETS = _set(
    """
    password passwords passwd passphrase passphrases passcode passcodes secret secrets token tokens credential
    credentials creds apikey apikeys jwt bearer authorization pwd sessid sessionid connectionstring connstr
    mnemonic passwort kennwort contrasena senha
    """
)
"""Words that make a name secret anywhere in it, unless its last word says otherwise."""

_LAST_SECRETS = _set(
    """
    key keys pass pin pincode pat pats pw otp totp cookie cookies dsn signature sig sas hmac pepper salt seed
    cred
    """
)
"""Words that make a name secret as its last word only: not in PIN_MEMORY or KEY_PREFIX."""

_LAST_PERHAPS = _set(
    """
    auth authentication session sessions webhook webhooks login
    """
)

_PAIRS = frozenset(
    {
        *(
            (owner, "key")
            for owner in ("api", "access", "secret", "private", "auth", "signing", "encryption", "master")
        ),
        *(("connection", "string"), ("conn", "string"), ("conn", "str"), ("session", "string"), ("api", "hash")),
        *(("secret", "id"), ("session", "id"), ("sess", "id")),
        *((which, "phrase") for which in ("seed", "recovery")),
        *((which, code) for which in ("access", "auth", "backup", "mfa", "otp", "pin", "unlock") for code in _CODES),
    }
)

_OF_NO_SECRET = _set(
    """
    public pub publishable project space issue partition sort primary foreign cache group object site file index
    shortcut hot registry idempotency row column map bind
    """
)
"""Words before `key` that make it a key of something other than access."""

_ADDED = _set(
    """
    value values string str data json b64 base64 raw text pem header prod dev test live default
    """
)
"""Words after a secret that only describe its format or variant."""

_OTHERWISE = _set(
    """
    path paths file files filename dir dirs directory directories folder root home name names id ids sid uid
    guid uuid url urls uri uris host hosts hostname port ports region zone env environment type types mode kind
    method methods flow scheme provider providers timeout ttl expiry expires expiration lifetime age interval
    limit limits max min count size length len budget enabled disabled required optional algorithm algorithms
    alg algo format encoding prefix suffix field param parameter scope scopes audience issuer realm domain
    server servers endpoint version level layout command cmd helper store storage backend manager policy
    rotation cache through strategy profile user users username email account team org organization project
    workspace database db table bucket model language locale timezone tz hint label description title status
    state schema var variable variables sock socket seconds minutes hours days ms refresh retry retries filter
    verify usage parallelism sha commit digest checksum revision ref branch tag arn addr address ca cert certs
    certificate certificates
    """
)
"""Last words that describe a value that is not secret."""

_COUNTED = _set(
    """
    max min minimum maximum num number n count total output input prompt completion thinking budget limit per
    chunk context overlap reasoning
    """
)
"""Words next to `tokens` if tokens are counted."""

_ASKS = _set(
    """
    no enable enabled disable disabled use allow require requires skip is has should
    """
)
"""First words of names whose values are yes or no."""


@lru_cache(maxsize=4096)
def meaning_of(name: str) -> NameMeaning:
    """Return the meaning of `name`."""
    words = tuple(_words(name))
    if not words or words[0] in _ASKS:
        return NameMeaning.PLAIN if words else NameMeaning.NOTHING
    last = words[-1]
    if words[-2:] in _PAIRS or words[-3:] in _TRIPLES:
        return NameMeaning.SECRET
    if WEBHOOK.search(name):
        return NameMeaning.PERHAPS
    if last in _OTHERWISE or (last in ("token", "tokens") and not _COUNTED.isdisjoint(words)):
        return NameMeaning.PLAIN
    if not _SECRETS.isdisjoint(words) or not _PAIRS.isdisjoint(pairwise(words)):
        # AUTH_TOKEN_HEADER is the name of a header, or the header itself.
        return NameMeaning.PERHAPS if last == "header" else NameMeaning.SECRET
    while len(words) > 1 and words[-1] in _ADDED:
        words = words[:-1]
    if words[-1] in ("key", "keys") and not _OF_NO_SECRET.isdisjoint(words[-2:-1]):
        return NameMeaning.PLAIN
    if words[-1] in _LAST_SECRETS:
        return NameMeaning.SECRET
    return NameMeaning.PERHAPS if words[-1] in _LAST_PERHAPS else NameMeaning.NOTHING


def is_secret_name(name: str) -> bool:
    """Return True if a variable, header, option or key of this name usually holds a credential."""
    return meaning_of(name) in (NameMeaning.SECRET, NameMeaning.PERHAPS)


def _words(name: str) -> Iterator[str]:
    return (part for found in _WORDS.findall(name) for part in _parts(found.lower()) if len(part) > 1)


def _parts(word: str) -> Iterator[str]:
    glued = _GLUED.fullmatch(word)
    return (part for part in glued.groups() if part) if glued else iter((word,))


_OWNERLESS = _set(
    """
    access account api app auth authorization basic bearer client conn connection cookie credential credentials db
    database default dir directory dsn env file folder header headers home host http id jwt key keys lang login master
    mcp my name oauth pass passphrase password passwd pat path paths pin private project pwd remote root secret secrets
    server service session shell signing str string temp tmp tmpdir token tokens uri url user username value webhook
    workspace
    """
)
"""Words that do not identify an owner: other programs on this machine use names made of these alone."""


def own_variable(server: str, wish: str) -> str:
    """Return a variable for `wish`, prefixed with the server if the wish alone is too generic."""
    variable = _variable(wish)
    words = (part for word in variable.split("_") for part in _parts(word.lower()))
    is_ownerless = all(word in _OWNERLESS or word.isdigit() for word in words)
    return prefixed(server, variable) if is_ownerless else variable


def prefixed(server: str, variable: str) -> str:
    """Return `variable` prefixed with the server, unless it already is."""
    prefix, variable = _variable(server), _variable(variable)
    return variable if variable.startswith(f"{prefix}_") else f"{prefix}_{variable}"


def _variable(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper() or "SECRET"
    return name if not name[0].isdigit() else f"_{name}"
