#!/usr/bin/env bash
# Start the same command on every host of a hostfile, in this folder (which they share), by ssh without a password:
#   scripts/on_hosts.sh hosts.txt .venv/bin/python -m experiments.train -m network=cluster workers.world_size=8 …
# The first word of a line is a host; empty lines and # lines are passed over. The first host is where ranks meet.
# Ends with the first non-zero status; Ctrl-C ends all.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 HOSTFILE COMMAND…" >&2; exit 2; }
hostfile=$1
shift
mapfile -t hosts < <(awk 'NF && $1 !~ /^#/ {print $1}' "$hostfile")
[ ${#hosts[@]} -ge 1 ] || { echo "$hostfile names no host" >&2; exit 2; }
nodes=$(IFS=,; echo "${hosts[*]}")
sweep="hosts-$(date +%s)-$$"
pids=()
trap 'kill "${pids[@]}" 2>/dev/null' INT TERM
for rank in "${!hosts[@]}"; do
  # shellcheck disable=SC2029 # expanded here on purpose
  ${SIDCO_SSH:-ssh -tt} "${hosts[$rank]}" \
    "cd $(printf %q "$PWD") && SIDCO_NODES=$nodes SIDCO_NODE_RANK=$rank SIDCO_SWEEP=$sweep $(printf '%q ' "$@")" \
    < /dev/null &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit $status
