#!/usr/bin/env bash
# builds_agree.sh PROGRAM PROGRAM …: all must print the same.
set -euo pipefail
first=$("$1")
echo "$1:"; echo "$first"
for program in "${@:2}"; do
  if [ "$("$program")" != "$first" ]; then
    echo "$program prints something else:"; "$program"
    exit 1
  fi
done
