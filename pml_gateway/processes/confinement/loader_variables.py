"""Variables that affect which code a program runs, or which hosts it trusts."""

from __future__ import annotations

import re

_ENDINGS = re.compile(
    r"(?:OPTIONS|OPTS|_FLAGS|PRELOAD|LIBRARY_PATH|EXECUTABLE(?:_PATH)?|_PROXY|_HOME|_CA_BUNDLE|_CA_CERTS|_PLUGINS?"
    r"|_PLUGIN_PATH|_LOADER|_INTERPRETER)\Z"
)
"""Endings of names by which other programs take options, programs, libraries and proxies."""

_PLAIN_NAME = re.compile(r"\w[\w.-]*")
"""Names without special characters; shells inherit functions through variables of other names."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PREFIXES = tuple(
    # the system's loader, shells, and tools that others start
    _set("LD_ DYLD_ BASH_ GIT_ SUDO_ DOCKER_ PODMAN_ CONTAINER_ BUILDAH_ COMPOSE_ GLIBC_ MALLOC_ XDG_ FONTCONFIG_")
    | _set("GIO_ GTK_ QT_ MAKE")
    # Node.js, Deno, Bun and their runners
    | _set("NODE_ NPM_ PNPM_ YARN_ BUN_ DENO_ COREPACK_ VOLTA_ NVM_ FNM_ NODENV_ TS_NODE_ TSX_ ELECTRON_")
    # Python and its runners
    | _set("PYTHON PYENV_ PIP_ PIPX_ UV_ CONDA_ VIRTUALENV_ POETRY_ PDM_ HATCH_ PIXI_ RYE_ COVERAGE_ PYTEST_")
    # other languages
    | _set("RUBY GEM_ BUNDLE_ RBENV_ PERL5 PERL_ PHP_ JAVA_ JDK_ _JAVA_ JVM_ MAVEN_ GRADLE_ SBT_ DOTNET_ CORECLR_")
    | _set("COR_ COMPLUS_ NUGET_ MSBUILD ASPNETCORE_ CARGO_ RUSTC RUSTFLAGS RUSTDOC RUSTUP_ R_LIBS R_PROFILE")
    | _set("R_ENVIRON R_HOME JULIA_ LUA_ ERL_ ELIXIR_ MIX_ OCAML GHC_ TCLLIBPATH GOFLAGS GOPROXY GOPATH GOROOT GOENV")
    | _set("GOTOOLCHAIN GONOSUM GOSUMDB GOPRIVATE GOINSECURE GOBIN GOCACHE")
    # managers of versions and environments, and this gateway
    | _set("MISE_ ASDF_ RTX_ DIRENV_ NIX_ PML_ OTEL_")
    # certificates of connections
    | _set("OPENSSL_ SSL_ SSLKEYLOGFILE CURL_ AWS_CA_ GRPC_DEFAULT_SSL_")
)

_NAMES = (
    _set("PATH HOME USERPROFILE SHELL ENV SHELLOPTS BASHOPTS IFS CDPATH PS4 PROMPT_COMMAND ZDOTDIR FPATH MODULE_PATH")
    | _set("EDITOR VISUAL PAGER MANPAGER BROWSER LESSOPEN LESSCLOSE CLASSPATH PHPRC PERLLIB VIRTUAL_ENV")
    | _set("TMPDIR TEMP TMP TERMINFO TERMINFO_DIRS GCONV_PATH LOCPATH NLSPATH HOSTALIASES LOCALDOMAIN RES_OPTIONS")
    | _set("RESOLV_HOST_CONF LOCALAPPDATA APPDATA PATHEXT COMSPEC SYSTEMROOT WINDIR PROGRAMDATA CHROME_PATH CHROME_BIN")
    | _set("KUBECONFIG WGETRC CURLRC INPUTRC PKG_CONFIG_PATH REQUESTS_CA_BUNDLE SSH_ASKPASS SSH_AUTH_SOCK SSH_COMMAND")
    | _set("DISPLAY WAYLAND_DISPLAY DBUS_SESSION_BUS_ADDRESS CC CXX LD AR CPP CFLAGS LDFLAGS")
)


def is_loader_variable(name: str) -> bool:
    """Return True if a variable may decide which code a program runs, or which hosts it trusts."""
    upper = name.upper()
    return (
        upper in _NAMES
        or upper.startswith(_PREFIXES)
        or _ENDINGS.search(upper) is not None
        or _PLAIN_NAME.fullmatch(name) is None
    )
