#!/bin/sh
# On a machine that gives no network namespaces cases of the kill matrix are skipped: in CI that is
# a failure, elsewhere it is said. usage: without_namespaces.sh PROGRAM
set -u
run() {  # the value of CI
  CI=$1 unshare --user --map-root-user sh -c \
    'echo 0 > /proc/sys/user/max_net_namespaces; exec "$0" --only step/2/first-commit-cut' "$2" 2>&1
}
said=$(run true "$1")
status=$?
echo "$said"
case $said in
  *"cases were skipped, and this is CI: failed"*) [ $status -eq 1 ] || exit 1 ;;
  *) exit 1 ;;
esac
said=$(run false "$1")
status=$?
echo "$said"
case $said in
  *"nothing to run, "*" skipped"*) exit $status ;;
  *) exit 1 ;;
esac
