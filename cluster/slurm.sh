#!/usr/bin/env bash
# A sweep on nodes of a Slurm cluster: a Ray of its own for the length of the job.
#
#   sbatch cluster/slurm.sh my.yaml --out results/my        what follows goes to `raybench sweep` as it is
#
# docs/cluster.md tells how to use this file, and what was tested of it and what was not.
# Make the virtual environment, and edit the lines below. Where the settings come from the environment (or `sbatch --export`):
#   RAYBENCH_VENV     virtual environment with raybench, on a file system that all nodes see (~/raybench-venv)
#   RAYBENCH_SHARED   folder for the token on such a file system, where none but you may read (~/.raybench)
#   RAYBENCH_HEAD_IP  address of the first node on the network that Ray shall use, where it has several
#SBATCH --job-name=raybench
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --output=raybench-%j.log
# Two minutes before the time is up the sweep is told to end in order: submit the same again, and it goes on.
#SBATCH --signal=B:TERM@120
##SBATCH --gpus-per-node=1
set -euo pipefail
umask 077

if [ "$#" -eq 0 ] || [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "usage: sbatch cluster/slurm.sh SWEEP.yaml [options of raybench sweep]" >&2
  exit 2
fi
nodes=${SLURM_JOB_NUM_NODES:-1}
cpus=${SLURM_CPUS_PER_TASK:-1}
venv=${RAYBENCH_VENV:-$HOME/raybench-venv}
secret=${RAYBENCH_SHARED:-$HOME/.raybench}/slurm-$SLURM_JOB_ID
scratch=/tmp/raybench-$SLURM_JOB_ID # on each node, for Ray; short, because paths of sockets are limited
port=$((20000 + SLURM_JOB_ID % 5000)) # other jobs may share the nodes
steps=() sweep=""
[ -x "$venv/bin/raybench" ] || { echo "no raybench in $venv: set RAYBENCH_VENV" >&2; exit 2; }
export PATH="$venv/bin:$PATH"

# Everything ends with this script: the sweep, Ray on all nodes, its files, the token.
# shellcheck disable=SC2317,SC2329 # the trap below calls it
finish() {
  local status=$?
  trap '' TERM INT
  trap - EXIT
  [ -z "$sweep" ] || kill -TERM "$sweep" 2>/dev/null || true
  for step in "${steps[@]}"; do kill -TERM "$step" 2>/dev/null || true; done
  for _ in $(seq 60); do
    kill -0 "${steps[@]}" 2>/dev/null || break # false once none of them is there
    sleep 0.5
  done
  for step in "${steps[@]}"; do kill -KILL "$step" 2>/dev/null || true; done
  wait || true
  srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 rm -rf "$scratch" || true
  rm -rf "$secret"
  exit "$status"
}
# Told to end: the sweep first, so that it leaves its folder in order; without a sweep, at once.
# shellcheck disable=SC2317,SC2329 # the trap below calls it
told() {
  [ -n "$sweep" ] || exit 143
  kill -TERM "$sweep" 2>/dev/null || true
}
trap finish EXIT
trap told TERM INT

# The token: of this job alone, and readable by you alone. Every `ray start` and the sweep find it by these two.
mkdir -p "$secret"
chmod 700 "$secret"
python -c 'import secrets; print(secrets.token_hex(32), end="")' >"$secret/auth_token"
chmod 600 "$secret/auth_token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$secret/auth_token"
# A node that falls silent is taken for dead after at most 20 s (Ray's own setting: 65 s).
export RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=9000 RAY_health_check_failure_threshold=2
export SRUN_CPUS_PER_TASK="$cpus" # since Slurm 22.05 srun does not take it over from sbatch

# This script runs on the first node of the job, and the head of the cluster beside it.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
ip=${RAYBENCH_HEAD_IP:-$({ hostname --ip-address; hostname --all-ip-addresses; } | tr ' ' '\n' |
  awk '!found && /^[0-9.]+$/ && !/^127[.]/ {print; found = 1}')}
[ -n "$ip" ] || { echo "no address of $head found: set RAYBENCH_HEAD_IP" >&2; exit 1; }

# Where Ray Client is installed Ray starts it, at a port that other jobs would use as well.
client=()
if python -c 'import grpc' 2>/dev/null; then client=(--ray-client-server-port=$((port + 5000))); fi
# Ray opens its own folder to everybody: it lies in one that is yours alone.
# shellcheck disable=SC2016 # $0 is for the shell on each node
srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 \
  bash -c 'mkdir -p -m 700 "$0" && [ -O "$0" ] && [ ! -L "$0" ]' "$scratch" ||
  { echo "$scratch on one of the nodes is not mine" >&2; exit 1; }
srun --nodes=1 --ntasks=1 --nodelist="$head" \
  ray start --head --block --node-ip-address="$ip" --port="$port" "${client[@]}" \
  --include-dashboard=false --dashboard-agent-listen-port=0 --num-cpus="$cpus" --temp-dir="$scratch/r" &
steps+=($!)
for _ in $(seq 240); do
  if (exec 3<>"/dev/tcp/$ip/$port") 2>/dev/null; then break; fi
  kill -0 "${steps[0]}" 2>/dev/null || { echo "the head did not start on $head" >&2; exit 1; }
  sleep 0.5
done
if [ "$nodes" -gt 1 ]; then
  srun --nodes=$((nodes - 1)) --ntasks=$((nodes - 1)) --ntasks-per-node=1 --exclude="$head" \
    ray start --address="$ip:$port" --block --dashboard-agent-listen-port=0 --num-cpus="$cpus" &
  steps+=($!)
fi

# All nodes first: a sweep plans with the CPUs that are there.
python - "$ip:$port" "$nodes" <<'EOF' &
import sys, time
import ray

address, wanted = sys.argv[1], int(sys.argv[2])
ray.init(address=address, logging_level="ERROR", log_to_driver=False)
until = time.monotonic() + 300
while (here := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > until:
        sys.exit(f"only {here} of {wanted} nodes joined the cluster within 300 s")
    time.sleep(1)
print(f"{here} nodes, {ray.cluster_resources().get('CPU', 0):g} CPUs", flush=True)
EOF
steps+=($!)
wait "$!" # a signal is heard while waiting, not while a command runs in the foreground
unset 'steps[-1]'

raybench sweep "$@" --address "$ip:$port" &
sweep=$!
status=0
wait "$sweep" || status=$?
while kill -0 "$sweep" 2>/dev/null; do # the wait was cut short by a signal
  status=0
  wait "$sweep" || status=$?
done
sweep=""
exit "$status"
