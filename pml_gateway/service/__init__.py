"""The gateway at login: a user unit of systemd or an agent of launchd, written, loaded, shown and removed."""
