# Shared by the scripts of this folder: `source "$(dirname "$0")/lib.sh"`.
# Progress goes to standard error, so that standard output stays free for results.

set -euo pipefail

RUBATO_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
RUBATO_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/rubato
# Scripts that call each other share one clock.
export SCRIPT_START=${SCRIPT_START:-${EPOCHREALTIME/./}}

# say TEXT…: one progress line with the seconds since the script began.
say() {
  local ms=$(((${EPOCHREALTIME/./} - SCRIPT_START) / 1000))
  printf '[%4d.%01ds] %s\n' $((ms / 1000)) $((ms % 1000 / 100)) "$*" >&2
}

# die WHAT [MEND]: stops, and says what to do about it.
die() {
  printf '\n%s: %s\n' "$(basename "$0")" "$1" >&2
  [ $# -lt 2 ] || printf '  What to do: %s\n' "$2" >&2
  exit 1
}

# usage: prints the comment at the head of the calling script, and is the whole of --help.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$0"; }

# hash_of FILE|- …: 12 hex digits of the files' contents (and of standard input for "-").
hash_of() { cat "$@" | sha256sum | cut -c1-12; }

# logged NAME COMMAND…: runs the command with its output in a log file; shows the log's end if it fails.
logged() {
  local log=$RUBATO_CACHE/logs/$1.log
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 30 "$log" >&2
    die "failed: $*" "the end of its output is above, all of it is in $log"
  fi
}

# locked NAME: holds a lock until the script ends, so that two checkouts do not build the same thing.
locked() {
  mkdir -p "$RUBATO_CACHE"
  exec 9>"$RUBATO_CACHE/$1.lock"
  flock -n 9 || { say "waiting for another run that holds $RUBATO_CACHE/$1.lock"; flock 9; }
}
