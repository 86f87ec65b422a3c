# Sourced by the scripts that build Go programs.

# counted NAME TOTAL go build -v …: runs it. -v names each package once it is compiled; on a terminal a line counts them, of
# at most TOTAL if that isn't empty, unless CI is set. What else Go has to say is printed everywhere.
counted() {
  local watched=
  if [ -t 2 ] && [ -z "${CI:-}" ]; then watched=1; fi
  "${@:3}" 2>&1 | awk -v name="$1" -v most="${2:+ of at most $2}" -v watched="$watched" '
    function clear() { if (shown) printf "\r\033[K"; shown = 0 }
    / / && !/^go: downloading / { clear(); print; fflush(); next }
    !watched { next }
    { progress = / / ? "downloading " $3 : ++compiled most " packages compiled" }
    { printf "\r%s\033[K", substr(name ": " progress, 1, 79); fflush(); shown = 1 }
    END { clear() }' >&2
}
