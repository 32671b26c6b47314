#!/bin/sh
# The lease of a host on one launch. Every node takes it with the first command that it is given, and from then on it
# runs out unless somebody pushes it forward: a rented host is then shut down by its operating system, and on a machine
# of the user's own Ray and all processes of the launch are ended, and the machine stays.
#
#   lease.sh take LAUNCH SECONDS DEADLINE rented|own OWNER   exit code 3 where somebody else has the host
#   lease.sh push       not before so many SECONDS from now
#   lease.sh hold       not before the deadline: results wait here; `lease.sh release` when they were fetched
#   lease.sh serve      push for as long as a worker's raylet runs
#   lease.sh end        end the launch's processes on this host now
# Nothing pushes it beyond DEADLINE, in seconds since 1970.
set -u
dir=$HOME/.raybench-lease

say() { echo "raybench: $1" >&2; exit "$2"; }
get() { cat "$dir/$1" 2>/dev/null || echo "${2:-0}"; }
put() { echo "$2" >"$dir/.$1.$$" && mv "$dir/.$1.$$" "$dir/$1"; }
now() { date +%s; }
alive() { kill -0 "$(get keeper none)" 2>/dev/null; }

ours() { # ids of the launch's processes: its folder stands in their arguments or, of Ray's, in their environment
  line=" $$ " up=$$ # but for this one and those it hangs on
  while [ "${up:-1}" -gt 1 ]; do up=$(ps -o ppid= -p "$up" | tr -d ' '); line="$line$up "; done
  for pid in $(pgrep -u "$(id -u)" .); do
    case $line in *" $pid "*) continue ;; esac
    ! grep -qs raybench-launch "/proc/$pid/cmdline" "/proc/$pid/environ" || echo "$pid"
  done
}

push() { # SECONDS from now
  [ -d "$dir" ] || say "nothing is leased here" 4
  now=$(now) until=$(($(now) + $1)) deadline=$(get deadline)
  if [ -e "$dir/held" ] || [ "$until" -gt "$deadline" ]; then until=$deadline; fi
  [ "$until" -gt "$now" ] || say "the hours of this launch are over" 5
  put until "$until"
  armed=$(get armed)
  [ "$(get kind)" = rented ] || return 0
  [ "$until" -lt "$armed" ] || [ $((until - armed)) -ge 20 ] || return 0
  in=$(((until - now + 59) / 60)) sudo=
  [ "$(id -u)" = 0 ] || sudo="sudo -n"
  $sudo shutdown --no-wall -h "+$in" >/dev/null 2>&1 || $sudo shutdown -h "+$in" >/dev/null 2>&1 ||
    say "this host does not let me arm its shutdown" 6
  put armed "$until"
}

take() { # LAUNCH SECONDS DEADLINE KIND OWNER, under the lock
  [ "$3" -gt "$(now)" ] || say "the hours of this launch are over" 5
  if [ -d "$dir" ] && [ "$(get launch)" != "$1" ]; then
    if [ "$(get until)" -ge "$(now)" ] || alive; then
      say "$(hostname) is taken by $(get owner somebody)" 3
    fi
    rm -rf "$dir" # of a host that was switched off meanwhile
  fi
  if [ ! -d "$dir" ]; then
    busy=$(pgrep -u "$(id -u)" -f 'ray/core/src/ray/|ray/dashboard/|ray/_private/' | tr '\n' ' ')
    [ "$4" = rented ] || [ -z "$busy" ] || say "Ray runs on $(hostname) already (processes $busy)" 3
    mkdir -m 700 "$dir" || exit 1
    for pair in "launch $1" "seconds $2" "deadline $3" "kind $4" "owner $5"; do
      put "${pair%% *}" "${pair#* }"
    done
  fi
  [ "$0" = "$dir/lease.sh" ] || cp "$0" "$dir/lease.sh"
  push "$2"
  [ "$4" = rented ] || alive || {
    setsid sh "$dir/lease.sh" keep "$1" >/dev/null 2>&1 </dev/null 9>&- &
    put keeper $!
  }
}

end() { # first as Ctrl-C would, so that what is being written is whole
  # shellcheck disable=SC2009,SC2046 # one word a process
  kill $(pgrep -u "$(id -u)" -f 'raybench-lease/lease.sh (serve|keep)' | grep -vx "$$") 2>/dev/null
  for signal in TERM KILL; do
    for _ in $(seq 20); do
      pids=$(ours)
      [ -n "$pids" ] || break 2
      # shellcheck disable=SC2086
      kill -$signal $pids 2>/dev/null
      sleep 0.5
    done
  done
  rm -rf "$HOME/raybench-launch" "$HOME/ray_bootstrap_key.pem" "$HOME/ray_bootstrap_config.yaml"
  if [ "$(get kind own)" = rented ]; then
    rm -f "$dir/held"
    push 120
  else
    rm -rf "$dir"
  fi
  ours
}

case ${1:-} in
  take) exec 9>"$HOME/.raybench-lease.lock"; flock 9; shift; take "$@" ;;
  push) push "$(get seconds 60)" ;;
  hold) [ ! -d "$dir" ] || { touch "$dir/held"; push 0; } ;;
  release) rm -f "$dir/held"; push "$(get seconds 60)" ;;
  serve)
    launch=$(get launch)
    while [ "$(get launch)" = "$launch" ] && pgrep -u "$(id -u)" -f raylet/raylet >/dev/null; do
      sh "$dir/lease.sh" push || break
      sleep 10
    done ;;
  keep) # on a machine of the user's own: ends what is ours there when the lease has run out
    while sleep 2; do
      [ "$(get launch)" = "$2" ] || exit 0
      [ "$(now)" -lt "$(get until)" ] || end
    done ;;
  end) end ;;
  *) sed -n '2,/^set/{/^#/s/^# \?//p}' "$0"; exit 2 ;;
esac
