#!/bin/bash
# What the cluster's job runs: the sweep's driver, on the head. It leaves its exit code behind, and keeps the lease.
#   job.sh FOLDER push|hold COMMAND...   what it tells lies in FOLDER; hold: its host lives until results are fetched
job=$1 kept=$2
shift 2
lease() { sh "$HOME/.raybench-lease/lease.sh" "$1"; }
cd "$(dirname "$0")" && mkdir -p "$job" || exit 2
rm -f "$job/ended"
echo $$ >"$job/driver.pid"
# the room that its end needs is taken now: the disk may be full by then
echo null >"$job/ended.new" && mv "$job/ended.new" "$job/ended" || exit 2
(lease "$kept"; while kill -0 $$ 2>/dev/null; do lease push; sleep 10; done) >/dev/null 2>&1 &
export RAYBENCH_DATA="$PWD/data" RAYBENCH_PROGRESS="$job/progress.json"
"$@" 2>&1 | tee "$job/job.log"
code=${PIPESTATUS[0]}
printf '%-4s\n' "$code" 1<>"$job/ended"
exit "$code"
