#!/bin/sh
# The lease of a host on one launch: docs/cluster.md has it as a state machine. Every node takes it with the first
# command that it is given, and from then on it runs out unless somebody pushes it forward: a rented host is then shut
# down by its operating system, and on a machine of the user's own Ray and all processes of the launch are ended, and
# the machine stays. Nothing pushes it beyond a deadline, which the host counts by its own clock.
#
#   lease.sh take LAUNCH SECONDS LEFT HOUR rented|own OWNER   exit code 3 where somebody else has the host
#                       LEFT: seconds until the deadline. HOUR: that of the head, in seconds since 1970
#   lease.sh limit LEFT until the deadline, if it is to be sooner
#   lease.sh left       print the seconds until the deadline
#   lease.sh push       not before so many SECONDS from now
#   lease.sh hold       not before the deadline: results wait here; `lease.sh release` when they were fetched
#   lease.sh serve      a worker: pushed for as long as its raylet runs
#   lease.sh tick       what the host does by itself, every few seconds and at every boot
#   lease.sh end        end the launch's processes on this host now
set -u
dir=$HOME/.raybench-lease config=$HOME/ray_bootstrap_config.yaml
closing=420 # seconds before a shutdown in which Ray has ended; nobody can log in for the last five minutes
schedule=/run/systemd/shutdown/scheduled # where the operating system has it: a reboot forgets it

say() { echo "raybench: $1" >&2; exit "$2"; }
get() { line=; { read -r line <"$dir/$1"; } 2>/dev/null; echo "${line:-${2:-0}}"; }
put() { echo "$2" 1<>"$dir/$1"; } # in place, which a full disk allows
now() { date +%s; }
alive() { kill -0 "$(get keeper none)" 2>/dev/null; }
rented() { [ "$(get kind own)" = rented ]; }
least() { if [ "$1" -lt "$2" ]; then echo "$1"; else echo "$2"; fi; }
root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

ours() { # ids of the launch's processes: its folder stands in their arguments or, of Ray's, in their environment
  line=" $$ " up=$$ # but for this one and those it hangs on
  while [ "${up:-1}" -gt 1 ]; do up=$(ps -o ppid= -p "$up" | tr -d ' '); line="$line$up "; done
  for pid in $(pgrep -u "$(id -u)" .); do
    case $line in *" $pid "*) continue ;; esac
    # `raybench down` is at it by ssh, where the lease runs out meanwhile
    ! grep -qs 'lease\.sh" end' "/proc/$pid/cmdline" || continue
    ! grep -qs raybench-launch "/proc/$pid/cmdline" "/proc/$pid/environ" || echo "$pid"
  done
}

arm() { # the operating system's schedule is what ends a rented host; it counts whole minutes
  rented || return 0
  due=$(sed -n 's/^USEC=\(.*\)......$/\1/p' "$schedule" 2>/dev/null) until=$(get until)
  [ "$until" -lt "${due:-0}" ] || [ $((until - ${due:-0})) -ge 80 ] || return 0
  in=$(((until - $(now)) / 60))
  [ "$in" -gt 0 ] || in=0
  root shutdown --no-wall -h "+$in" >/dev/null 2>&1 || root shutdown -h "+$in" >/dev/null 2>&1 ||
    say "this host does not let me arm its shutdown" 6
}

push() { # SECONDS from now
  [ -d "$dir" ] || say "nothing is leased here" 4
  until=$(least $(($(now) + $1)) "$(get deadline)")
  [ "$(get held)" = 0 ] || until=$(get deadline)
  [ "$until" -gt "$(now)" ] || say "the hours of this launch are over" 5
  put until "$until"
  arm
}

take() { # LAUNCH SECONDS LEFT HOUR KIND OWNER, under the lock
  deadline=$(least $(($(now) + $3)) "$4") over=0
  [ "$5" = own ] || over=$closing
  [ $((deadline - $(now))) -gt $over ] || say "the hours of this launch are over" 5
  if [ -d "$dir" ] && [ "$(get launch)" != "$1" ]; then
    if [ "$(get until)" -ge "$(now)" ] || alive; then
      say "$(hostname) is taken by $(get owner somebody)" 3
    fi
    rm -rf "$dir" # of a host that was switched off meanwhile
  fi
  if [ ! -d "$dir" ]; then
    busy=$(pgrep -u "$(id -u)" -f 'ray/core/src/ray/|ray/dashboard/|ray/_private/' | tr '\n' ' ')
    [ "$5" = rented ] || [ -z "$busy" ] || say "Ray runs on $(hostname) already (processes $busy)" 3
    mkdir -m 700 "$dir" || exit 1
    # if whoever took it never comes back, it ends well before the deadline, which is counted from here on
    for pair in "launch $1" "seconds $(least "$2" $(($3 / 2)))" "deadline $deadline" "kind $5" "owner $6" \
      "held 0" "role head" "until 0"; do
      put "${pair%% *}" "${pair#* }" || { rm -rf "$dir"; exit 1; }
    done
  fi
  [ "$0" = "$dir/lease.sh" ] || cp "$0" "$dir/lease.sh"
  push "$(get seconds)"
  if [ "$5" = rented ]; then
    unit=$dir/raybench-lease.service # per boot, and again whenever it is killed
    printf '[Service]\nUser=%s\nEnvironment=HOME=%s\nExecStart=/bin/sh %s keep %s\nRestart=always\n%s\n' \
      "$(id -un)" "$HOME" "$dir/lease.sh" "$1" '[Install]
WantedBy=multi-user.target' >"$unit"
    root systemctl enable --now "$unit" >/dev/null 2>&1 ||
      say "this host does not let me arm its shutdown at every boot (systemctl)" 6
  else
    alive || {
      setsid sh "$dir/lease.sh" keep "$1" >/dev/null 2>&1 </dev/null 9>&- &
      put keeper $!
    }
  fi
}

stop() { # first as Ctrl-C would, so that what is being written is whole
  for signal in TERM KILL; do
    for _ in $(seq 20); do
      pids=$(ours)
      [ -n "$pids" ] || break 2
      # shellcheck disable=SC2086
      kill -$signal $pids 2>/dev/null
      sleep 0.5
    done
  done
}

close() { # Ray on the head ends before any host, since its autoscaler would replace it; then the workers go
  [ "$(get role)" != head ] || [ -e "$config" ] || return 0
  stop
  [ ! -e "$config" ] || timeout 200 bash --login -i -c "ray down --yes --workers-only $config" >/dev/null 2>&1
  rm -f "$config" "$HOME/ray_bootstrap_key.pem"
}

tick() {
  if ! rented && [ "$(now)" -ge "$(get until)" ]; then
    end
    return 0
  fi
  if [ "$(get role)" != head ] && pgrep -u "$(id -u)" -f raylet/raylet >/dev/null; then
    put role worker
    push "$(get seconds)"
    return 0
  fi
  rented || return 0
  if [ "$(get role)" = worker ]; then
    put role lone
    (push 390) # time to start Ray again, as the head does where it is there
  fi
  arm
  [ "$(now)" -lt $(($(get until) - closing)) ] || close
}

end() {
  stop
  rm -rf "$HOME/raybench-launch" "$HOME/ray_bootstrap_key.pem" "$config"
  if rented; then
    put held 0
    push 120
  else
    [ "$(get keeper)" = $$ ] || kill "$(get keeper none)" 2>/dev/null
    rm -rf "$dir"
  fi
  ours
}

case ${1:-} in
  take) exec 9>"$HOME/.raybench-lease.lock"; flock 9; shift; take "$@" ;;
  limit)
    put deadline "$(least "$(get deadline)" $(($(now) + $2)))"
    push "$(get seconds)" ;;
  left) echo $(($(get deadline) - $(now))) ;;
  hour) get deadline ;;
  push) push "$(get seconds 60)" ;;
  hold) [ ! -d "$dir" ] || { put held 1; push 0; } ;;
  release) put held 0; push "$(get seconds 60)" ;;
  serve) put role worker ;;
  tick) tick ;;
  keep)
    while [ "$(get launch)" = "$2" ]; do (tick); sleep 4; done ;;
  end) end ;;
  *) sed -n '2,/^set/{/^#/s/^# \?//p}' "$0"; exit 2 ;;
esac
