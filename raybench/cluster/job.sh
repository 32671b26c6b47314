#!/bin/bash
# What the cluster's job runs: the sweep's driver, on the head. It leaves its exit code behind, and keeps the lease.
#   job.sh FOLDER push|hold COMMAND...   what it tells lies in FOLDER; hold: its host lives until results are fetched
job=$1 kept=$2
shift 2
lease() { sh "$HOME/.raybench-lease/lease.sh" "$1"; }
cd "$(dirname "$0")" && mkdir -p "$job" || exit 2
rm -f "$job/ended"
echo $$ >"$job/driver.pid"
(lease "$kept"; while kill -0 $$ 2>/dev/null; do lease push; sleep 10; done) >/dev/null 2>&1 &
export RAYBENCH_DATA="$PWD/data" RAYBENCH_PROGRESS="$job/progress.json"
"$@" 2>&1 | tee "$job/job.log"
code=${PIPESTATUS[0]}
echo "$code" >"$job/ended.new" && mv "$job/ended.new" "$job/ended"
exit "$code"
