"""The lexicon: words by what they mean for the lint, so that rules are about sending and secrets, not wordings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

END = "|"
"""Stands for the end of a sentence."""

PLAIN = "."
"""Stands for a word without a kind."""

_MARK_WORDS = """
important information message task system secret instruction critical admin override internal assistant
mandatory hidden note inst sys global directive priority instructions user developer urgent attention require
required requirement prompt rule rules ai llm agent model context policy security warning thinking mcp command
authority compliance begin end confidential private notice operator configuration config
"""
"""Words inside tags or brackets that claim authority over a model; HTML tags are not among them."""

_MARKS = frozenset(_MARK_WORDS.split())

_TOKEN = re.compile(
    r"(?P<link>\bhttps?://[^\s\"'<>)\]}]{1,500}|\bwww\.[^\s\"'<>)]{3,200})"
    r"|(?P<mail>[a-z0-9_.+-]{1,64}@[a-z0-9-]{1,64}\.[a-z0-9.-]{2,64})"
    r"|(?P<file>(?:~|/root|/home/[\w.-]{1,40}|\$home|%userprofile%)/\.[\w.-]{1,60}(?:/[\w.*-]{1,60}){0,8}"
    r"|/etc/(?:passwd|shadow|sudoers|hosts|ssh)\w{0,20}|/proc/[\w/]{1,40}"
    r"|(?<![\w.])\.(?:env|ssh|aws|npmrc|netrc|pgpass|kube|gnupg"
    r"|git-credentials|docker|bash_history|zsh_history|cursor|pem)\b(?:[./][\w.-]{1,60}){0,4}"
    r"|\b(?:ssh-rsa|id_rsa|id_ed25519|id_ecdsa|id_dsa|authorized_keys|known_hosts|wallet\.dat|mcp\.json|credentials\.json|secrets?\.(?:ya?ml|json|env)"
    r"|claude_desktop_config(?:\.json)?|ntds\.dit|login\.keychain)\b(?:\.pub)?|\*\.(?:pem|env|key)\b|\$[a-z_]*(?:key|token|secret|password)\b)"
    r"|(?P<shell>\brm\s+-[rf]{1,2}\b|/bin/(?:ba)?sh\b|/dev/tcp/|\$\([^)\n]{2,200}\)|\|\s{0,3}(?:ba|z)?sh\b|\bchmod\s+[+0-7]|>\s?&\s?/"
    r"|\bos\.system\b|\bsubprocess\.|\bbase64\s+-d\b|\bnc\s+-|`(?:cat|curl|wget|env|id|whoami)\b)"
    r"|(?P<mark><!--|\[//\]:\s?#|<\|[a-z_ ]{2,30}\|>|<<\s?/?sys\s?>>"
    r"|[\[<{(|#*=]{1,4}\s?/?(?P<said>[a-z]{2,14})"
    r"(?P<more>[ _:-]{1,3}[a-z]{2,16}){0,4}\s?(?:[a-z]+=[^>\n]{1,60})?[\]>})|#*=:])"
    r"|(?P<word>\d?[^\W\d_][^\W_]*(?:['’_-][^\W_]+){0,6})"
    r"|(?P<end>[.!?;。！？；](?=[\s\"')\]]|$)|[。！？；]|\n\s*\n|\n\s*[-*•#]|-->)"
)

_SPOKEN = re.compile(
    "(?P<A>忽略|无视|忘记|忘掉|覆盖|無視)|(?P<B>之前|以前|先前|上面|以上|前面|以前の)|(?P<C>所有|全部|任何|一切|すべて)|(?P<D>指令|指示|规则|规定|命令|限制)"
    "|(?P<E>提示词|系统提示|プロンプト)|(?P<F>系统|システム)|(?P<I>用户|ユーザー)|(?P<K>不要|不得|切勿|禁止|请勿|ないで)|(?P<L>告诉|告知|透露|提及|泄露)"
    "|(?P<M>偷偷|悄悄|暗中|静默|秘密地)|(?P<O>发送|上传|转发|传送|发给|送信)|(?P<P>窃取|盗取)|(?P<Q>读取|打开|获取|読み取)|(?P<S>密码|密钥|凭证|凭据|令牌|私钥|口令|パスワード)"
    "|(?P<V>对话|聊天记录|会话)|(?P<X>外部|攻击者|远程)|(?P<f>必须|务必|始终|总是|一定要|必ず)|(?P<d>首先|优先|先调用|最初)|(?P<g>调用|使用|执行|呼び出)|(?P<h>工具|ツール)|(?P<k>其他|其它|别的)"
)

_CJK = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")

_DROP = re.compile(
    r"attack|attkr|evil|malicious|exfil|pwn|hack(?!er-?news|athon)|c2\b|webhook\.site|requestbin|requestcatcher|burpcollaborator|oast\.|"
    r"interact\.sh|ngrok|pipedream\.net|hookbin|beeceptor|collector|harvest|steal|://\d{1,3}(?:\.\d{1,3}){3}(?<!127\.0\.0\.1)"
)
"""Addresses that only collectors of data name in a tool."""

_LEET = str.maketrans("013457@$", "oieasTas".lower())

MAX_SENTENCE = 60
"""Words of a sentence; what runs on is cut there, so that far apart words are not taken together."""

_SEPARATORS = re.compile(r"[\W_]+")


class Kind(StrEnum):
    """Meaning of a word; the value is the letter that rules match."""

    IGNORE = "A"
    PRIOR = "B"
    ALL = "C"
    RULES = "D"
    PROMPT = "E"
    SYSTEM = "F"
    ADMIN = "G"
    MODEL = "H"
    USER = "I"
    YOU = "J"
    NOT = "K"
    TELL = "L"
    SILENT = "M"
    HIDDEN = "N"
    SEND = "O"
    STEAL = "P"
    READ = "Q"
    PUT = "R"
    SECRET = "S"
    FILE = "T"
    PERSONAL = "U"
    TALK = "V"
    CONTENT = "W"
    OUTSIDE = "X"
    SERVER = "Y"
    LINK = "Z"
    ADDRESS = "a"
    EVIL = "b"
    BEFORE = "c"
    FIRST = "d"
    WHENEVER = "e"
    MUST = "f"
    CALL = "g"
    TOOL = "h"
    NAME = "i"
    PEER = "j"
    OWN = "#"
    OTHER = "k"
    INSTEAD = "l"
    PREFER = "m"
    OUTDATED = "n"
    APPROVAL = "o"
    DISABLE = "p"
    GRANT = "q"
    ASK = "r"
    MONEY = "s"
    CHANGE = "t"
    LATER = "u"
    OBEY = "v"
    KEEP = "w"
    COMMAND = "x"
    SHELL = "y"
    MARK = "z"
    URGENT = "0"
    ALSO = "1"
    COPY = "2"
    ANSWER = "3"
    FIELD = "4"
    COVER = "5"
    EXAMPLE = "6"
    MESSAGE = "7"
    SESSION = "8"
    SAFETY = "9"
    DESTROY = "@"
    COLLECT = "$"
    PERSON = "%"
    IDENTITY = "&"
    PRAISE = "="
    SELF = "+"
    WHICH_MODEL = "_"


_WORDS: dict[Kind, str] = {
    Kind.IGNORE: """ignore disregard forget neglect override overrule overwrite supersede void nullify abandon
        dismiss circumvent violate discard unlearn ignora ignorar ignorez ignorer ignorier ignoriere oublie
        oubliez olvida vergiss missachte forgo bypass sidestep overlook""",
    Kind.PRIOR: """previous prior earlier preceding above former original past foregoing preexisting
        pre-existing initial anteriores anterior précédentes vorherigen vorherige bisherigen existing built-in
        default""",
    Kind.ALL: """all any every each everything anything whole entire complete full verbatim whatever todas
        toutes alle whichever""",
    Kind.RULES: """instruction directive rule guideline policy constraint restriction guardrail limitation
        order direction programming instrucciones anweisungen consignes reglas regeln guidance""",
    Kind.PROMPT: "prompt",
    Kind.SYSTEM: "system developer sistema système",
    Kind.ADMIN: """admin administrator root sudo superuser privileged unrestricted privilege uncensored
        jailbroken dan jailbreak god-mode elevated owner operator""",
    Kind.MODEL: "assistant model llm ai agent claude gpt chatgpt copilot chatbot agents gemini cursor bot",
    Kind.USER: """user customer human end-user client caller victim utilisateur usuario benutzer nutzer utente
        usuário пользователю""",
    Kind.PERSON: "anyone people someone anybody humans person somebody they them",
    Kind.YOU: "you your yourself",
    Kind.NOT: """not never don't dont doesn't cannot can't won't mustn't shouldn't without no nor nunca nicht
        jamais neither refrain avoid stop ne pas nie non não не никогда""",
    Kind.TELL: """tell mention inform disclose reveal notify explain acknowledge discuss warn describe announce
        admit divulge reference surface expose display show report alert say telling dis dites digas sage sagen
        dici diga скажи говори""",
    Kind.SILENT: """silently secretly quietly covertly stealthily discreetly invisibly surreptitiously
        transparently unnoticed confidentially undetected secrecy unbeknownst stealth covert automatically
        background privately unseen quiet silent""",
    Kind.HIDDEN: """hidden concealed invisible hide conceal confidential undisclosed internal-only mask
        internal obscure""",
    Kind.SEND: """send forward transmit post upload email mail relay deliver dispatch ship sync publish pipe
        stream push submit share envía envoyer senden report beacon ping sent broadcast notify webhook mirror
        replicate redirect reroute route envoie envoyez transmets envíalo sende schicke übermittle invia envie
        отправь передай""",
    Kind.STEAL: """exfiltrate steal siphon harvest leak hijack exfil exfiltration exfiltrated stolen smuggle
        keylogger keylog eavesdrop phish phishing spy spyware""",
    Kind.READ: """read open load access extract cat dump scan locate list enumerate lookup inspect fetch
        retrieve get grab obtain view print lis lisez lire lies lesen lee lea leer leggi leia прочитай
        прочти""",
    Kind.COLLECT: "collect gather capture record monitor track index ocr fingerprint log upload snapshot aggregate",
    Kind.PUT: """include append attach embed insert prepend add pass place put provide supply encode
        concatenate fill populate copy paste inject incorporate concat set substitute write joins joindre
        ajoute inclus inclure incluye añade agrega füge übergib mitgeben inserisci includi inclua добавь вставь
        включи""",
    Kind.SECRET: """password passphrase credential secret token apikey passcode otp cvv pin mnemonic keys
        passwd pwd key certificate contraseña passwort cookie auth login""",
    Kind.PERSONAL: """ssn pii phi clipboard keystroke screenshot microphone webcam passport biometric personal
        private sensitive confidential medical dob cvc""",
    Kind.PRAISE: "best greatest finest unrivalled unmatched unbeatable ultimate smartest perfect superior world-class",
    Kind.SELF: "i my me mine i'm i've",
    Kind.IDENTITY: "hostname username fingerprint mac-address whoami geolocation location contacts contact",
    Kind.TALK: "conversation chat transcript history dialogue dialog chats conversations memory",
    Kind.SESSION: "session context thread turn history workflow",
    Kind.CONTENT: """content contents data file files result results document documents text record records
        info information details directory folder contenu contenido inhalt contenuto conteúdo содержимое""",
    Kind.OUTSIDE: """external remote attacker third-party collector exfil outside attackers attacker's
        adversary attacker-controlled offsite off-site external-facing remotely externally externalized
        outbound partners partner""",
    Kind.SERVER: """server endpoint url host domain proxy service destination webhook site sink bucket database
        gateway backend""",
    Kind.EVIL: """evil malicious malware backdoor rogue pwned p0wned exploit ransomware c2 trojan rootkit
        botnet attack adversarial""",
    Kind.BEFORE: "before prior-to preceding ahead antes avant bevor prerequisite beforehand",
    Kind.FIRST: "first initially firstly immediately right-away upfront beginning start primero",
    Kind.WHENEVER: "when whenever if once while wherever upon during where unless until after always-when cada",
    Kind.MUST: """must mandatory required require shall ensure necessarily compulsory obligatory always need
        should necessary make-sure critical essential imperative absolutely strictly siempre immer toujours""",
    Kind.CALL: """call invoke use run execute trigger launch using calling consult query activate employ
        running executing spawn start""",
    Kind.TOOL: "tool function plugin functions tools extension connector mcp skill method api operation capability",
    Kind.OTHER: """other another alternative competing different rest similar others competitor rival remaining
        else alternate""",
    Kind.INSTEAD: """instead rather replace replacement replaces supersedes override substitute overriding
        superseding replacing over""",
    Kind.PREFER: """prefer priority prioritize prioritise choose pick select only exclusively exclusive highest
        favor favour preferred preferable rank highest-rated top-rated best-rated recommended authoritative
        sole top precedence favored trusted official reliable better faster""",
    Kind.OUTDATED: """outdated deprecated broken unsafe inferior incomplete unreliable obsolete insecure
        incorrect inaccurate disabled unavailable compromised slow legacy buggy vulnerable expired""",
    Kind.APPROVAL: """approval consent confirmation permission confirm approve authorization authorisation
        confirming permissions ask-first pre-approved authorized pre-authorized pre-cleared preapproved
        approved consented""",
    Kind.SAFETY: """safety security filter safeguard protection moderation ethics ethical guard warning check
        checks sandbox authentication audit validation""",
    Kind.DISABLE: """disable skip suppress deactivate omit remove off turn-off relax lift weaken stop bypass
        evade unlock suspend waive""",
    Kind.GRANT: """grant escalate elevate become pretend act roleplay impersonate assume behave treat consider
        enable allow""",
    Kind.ASK: "ask request demand solicit prompt-for obtain-from enter type urge ask-for collect-from",
    Kind.MONEY: """payment beneficiary recipient wallet transfer invoice bank iban account amount payee
        transaction fund funds purchase""",
    Kind.CHANGE: """change modify alter swap tamper rewrite manipulate edit falsify corrupt poison redirect
        reroute intercept mutate adjust divert""",
    Kind.LATER: """later subsequently future version approved review subsequent thereafter post-approval
        reviewed approving afterwards next activation""",
    Kind.OBEY: "obey follow comply adhere treat honor honour heed cooperate execute",
    Kind.KEEP: """log store cache retain archive persist save stored cached logged retained keep maintain
        synced maintained recorded""",
    Kind.COMMAND: "command shell bash code script terminal powershell binary executable subprocess",
    Kind.SHELL: """curl wget chmod nc netcat eval os.system subprocess.run base64 ncat nslookup powershell.exe
        crontab scp rsync""",
    Kind.URGENT: "important critical urgent attention warning emergency notice vital crucial immediately nota",
    Kind.ALSO: "also additionally then furthermore moreover silently plus too secondly afterwards",
    Kind.COPY: "bcc cc copy copies duplicate bcc'd cc'd blind-copy",
    Kind.ANSWER: "response reply answer output summary return responses answers replies outputs responding returned",
    Kind.FIELD: """parameter argument field value param arg header sidenote note notes sidecar metadata body
        subject title placeholder champ paramètre campo parámetro feld parametro параметр поле""",
    Kind.COVER: """compliance telemetry analytics diagnostics debugging diagnostic license quality assurance
        improvement verification verify troubleshooting backup optimization billing governance personalization
        training marketing research statistics support monitoring auditing validate""",
    Kind.EXAMPLE: """detect example sample fixture illustrative documentation docs mock detects expected phrase
        scanner guardrail tests illustrate analyze analyzes flag flags demonstrate explains sanitize prevent
        block protect detection redact training corpus checks checking scans scanning explaining canned refers
        reports detector classifier quarantine honeypot awareness lesson quiz simulate signature phishing
        injection""",
    Kind.MESSAGE: """message messages email emails mails request requests query queries input inputs question
        questions mail""",
    Kind.DESTROY: "delete destroy wipe erase format shred drop truncate rm overwrite encrypt kill",
}

_PHRASES: dict[Kind, str] = {
    Kind.WHICH_MODEL: "llm name, llm model name, calling model, model calling",
    Kind.EXAMPLE: """prompt injection, jailbreak attempt, tool poisoning, exfiltration attempt, exfiltration pattern,
        leaked credential, leaked key, leaked token, leaked secret, leaked password, known malware, attack pattern""",
    Kind.MODEL: "llm model, language model",
    Kind.PROMPT: """system prompt, developer message, system message, initial prompt""",
    Kind.ADMIN: """developer mode, debug mode, god mode, maintenance mode, full authority, admin access, root
        access""",
    Kind.SECRET: """api key, private key, ssh key, access key, access token, secret key, deploy key, signing
        key, encryption key, auth token, session token, session cookie, bearer token, service
        account, seed phrase, recovery phrase, connection string, recovery code, backup code,
        security code, verification code, one-time code, two-factor code, mfa code, security
        question, personal access""",
    Kind.IDENTITY: """environment variable, env var, mac address, running processes, machine fingerprint""",
    Kind.FILE: """env file, id rsa, etc passwd, dot env, shell history, bash history, password manager""",
    Kind.PERSONAL: """credit card, bank card, card number, social security, debit card, bank details, browsing
        history, private information, personal information, personal data, location history""",
    Kind.TALK: """chat history, conversation history, message history, chat transcript, conversation context,
        chat log, tool results, tool outputs, user's message, user message""",
    Kind.CONTENT: """source code, git history, home directory""",
    Kind.OUTSIDE: """third party, third parties""",
    Kind.BEFORE: """prior to vor перед prima""",
    Kind.INSTEAD: """in place""",
    Kind.DISABLE: """turn off, opt out""",
    Kind.IGNORE: """set aside""",
    Kind.OUTDATED: """no longer""",
    Kind.GRANT: """act as""",
    Kind.WHENEVER: """from now, each time, every time, as soon""",
    Kind.MUST: """make sure, be sure, have to, has to, needs to""",
    Kind.ALSO: """side effect, in addition""",
    Kind.URGENT: """pay attention, note to""",
    Kind.PREFER: """default tool""",
    Kind.COPY: """blind copy, carbon copy""",
    Kind.MARK: """hidden instruction, hidden directive, secret instruction, assistant instruction, system
        override, system instruction, important system""",
    Kind.SILENT: """behind the""",
    Kind.TELL: """let know""",
    Kind.RULES: """safety guidelines""",
    Kind.HIDDEN: """keep this, keep secret, between us""",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """A text as kinds: a letter for each word, with where it stands; what rules match and the classifier weighs."""

    letters: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    words: tuple[str, ...]

    def sentences(self) -> Iterator[tuple[int, int]]:
        """First and last (exclusive) token of each sentence."""
        start = 0
        for end in (*(at for at, letter in enumerate(self.letters) if letter == END), len(self.letters)):
            if end > start:
                yield start, end
            start = end + 1


def read(text: str, peers: Collection[str] = (), own: Collection[str] = ()) -> Reading:
    """Return the words of a text by kind.

    Args:
        text: of a definition.
        peers: names of other servers' tools, in lower case.
        own: names of the server's own tools and parameters, as `spelled`.
    """
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = "".join(each if len(each) == 1 else original for original, each in ((c, c.lower()) for c in text))
    letters: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    words: list[str] = []
    run = 0
    for found in _TOKEN.finditer(lowered):
        said = found[0]
        group = found.lastgroup
        if group in ("said", "more"):
            group = "mark"
        if group == "word" and _CJK.search(said):
            for letter, start, end in _spoken(said):
                letters.append(letter)
                starts.append(found.start() + start)
                ends.append(found.start() + end)
                words.append(said[start:end])
            continue
        letter = _letter(found, said, group, peers, own)
        if letter == END:
            run = 0
        else:
            run += 1
            if run > MAX_SENTENCE:
                letters.append(END)
                starts.append(found.start())
                ends.append(found.start())
                words.append("")
                run = 1
        letters.append(letter)
        starts.append(found.start())
        ends.append(found.end())
        words.append(said)
        if len(words) > 1 and letter != END:
            phrase = _PHRASE.get((words[-2], said))
            if phrase is not None:
                letters[-2:] = [phrase]
                starts[-2:] = [starts[-2]]
                ends[-2:] = [ends[-1]]
                words[-2:] = [f"{words[-2]} {said}"]
    return Reading("".join(letters), tuple(starts), tuple(ends), tuple(words))


def _spoken(said: str) -> Iterator[tuple[str, int, int]]:
    """Yield the words with a kind of a text without blanks, and pairs of letters between them."""
    at = 0
    for part in (*_SPOKEN.finditer(said), None):
        end = len(said) if part is None else part.start()
        yield from ((PLAIN, start, start + 2) for start in range(at, end - 1))
        if part is not None:
            yield str(part.lastgroup), part.start(), part.end()
            at = part.end()


def spelled(name: str) -> str:
    """Return a name as it is compared: `listItems`, `list-items` and `list_items` are one."""
    return _SEPARATORS.sub("", name.lower())


def _letter(found: re.Match[str], said: str, group: str | None, peers: Collection[str], own: Collection[str]) -> str:
    match group:
        case "word":
            kind = _KIND.get(said)
            if said in peers:
                return Kind.PEER
            if kind is None and spelled(said) in own:
                return Kind.OWN
            if kind is not None:
                return kind
            if "_" in said:
                return _KIND.get(said.replace("_", " ")) or _PHRASE.get(tuple(said.split("_", 1)), Kind.NAME)  # type: ignore[arg-type]
            if "-" in said:
                return next((_KIND[part] for part in said.split("-") if part in _KIND), PLAIN)
            if said.endswith(("'s", "’s")):
                return _KIND.get(said[:-2], PLAIN)
            if not said.isalpha():
                return _KIND.get(said.translate(_LEET)) or _KIND.get(said.replace("1", "l").translate(_LEET), PLAIN)
            return PLAIN
        case "end":
            return END
        case "link":
            return Kind.EVIL if _DROP.search(said) else Kind.LINK
        case "mail":
            return Kind.EVIL if _DROP.search(said) else Kind.ADDRESS
        case "file":
            return Kind.FILE
        case "shell":
            return Kind.SHELL
        case _:
            if said.startswith(("<!--", "<|", "<<", "[//")):
                return Kind.MARK
            inner = re.findall(r"[a-z]+", said)
            return Kind.MARK if inner and (inner[0] in _MARKS or inner[-1] in _MARKS) else PLAIN


def _forms(word: str) -> Iterator[str]:
    """Yield a word with its endings; forms that do not exist do no harm."""
    yield word
    if not word.isascii() or len(word) < 3 or ("-" in word and len(word) > 12):
        return
    yield f"{word}s"
    if word.endswith("e"):
        yield from (f"{word}d", f"{word[:-1]}ing")
    elif word.endswith("y") and word[-2] not in "aeiou":
        yield from (f"{word[:-1]}ies", f"{word[:-1]}ied", f"{word}ing")
    else:
        yield from (f"{word}ed", f"{word}ing", f"{word}es", f"{word}{word[-1]}ed", f"{word}{word[-1]}ing")


def _kinds() -> dict[str, str]:
    found: dict[str, str] = {}
    for kind, listed in _WORDS.items():
        for word in listed.split():
            found.setdefault(word, kind.value)
    for kind, listed in _WORDS.items():
        for word in listed.split():
            for form in _forms(word):
                found.setdefault(form, kind.value)
    return found


_KIND = _kinds()


def _phrases() -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    listed = ((phrase, kind) for kind, phrases in _PHRASES.items() for phrase in re.split(r",\s+", phrases))
    for phrase, kind in listed:
        first, second = phrase.rsplit(" ", 1)
        for form in (second, f"{second}s", f"{second[:-1]}ies" if second.endswith("y") else second):
            found[first, form] = kind.value
            found.setdefault((f"{first}s", form), kind.value)
    return found


_PHRASE = _phrases()
ORDER = {kind.value: at for at, kind in zip(count(), Kind, strict=False)}
"""The position of each letter, for those who count them."""
