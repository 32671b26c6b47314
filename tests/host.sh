# One host of cluster_kit, as process 1 of namespaces of its own: what it mounts and what it runs end with it.
#   host.sh ROOT NAME PAM DISK [FOLDER ...]     ROOT: the host's folder, with key.pub; PAM: yes or no; DISK: size of the
#   home of its user ubuntu; the folders are seen at their own places, read-only
# It ends as its sshd, or when its shutdown is due. `shutdown -h +N` does what systemd does: it notes the time in /run,
# and closes logins of others than root five minutes before. `systemctl enable --now UNIT` keeps the unit's program.
set -eu
root=$1 name=$2 pam=$3 disk=$4
shift 4
mount --make-rprivate /
hostname "$name"
mount -t proc proc /proc
mkdir -p "$root/seen" "$root/kept"
mount -t tmpfs none "$root/seen"
i=0
for d in "$@"; do i=$((i + 1)); mkdir "$root/seen/$i"; mount --bind "$d" "$root/seen/$i"; done
mount -t tmpfs -o mode=755 none "$root/kept"
cp "$root/key.pub" "$root/kept/"
mkdir "$root/kept/in" "$root/kept/bin"
mount --rbind "$root/seen" "$root/kept/in"
exec 9<"$root/kept"
cd /proc/self/fd/9
{ sed 's/^root:[^:]*:/root:*:/; /^ubuntu:/d' /etc/shadow; echo 'ubuntu:*:19000:0:99999:7:::'; } >shadow
{ sed '/^ubuntu:/d' /etc/passwd; echo 'ubuntu:x:4242:4242::/home/ubuntu:/bin/bash'; } >passwd
{ sed '/^ubuntu:/d' /etc/group; echo 'ubuntu:x:4242:'; } >group
echo "127.0.0.1 localhost" >hosts
chmod 640 shadow
for f in shadow passwd group hosts; do mount --bind $f /etc/$f; done

cat >bin/sudo <<'END'
#!/bin/sh
[ "$1" != -n ] || shift
exec "$@"
END
cat >bin/shutdown <<'END'
#!/bin/sh
for w; do case $w in
  +*) echo "${w#+}" >/run/asked/tmp.$$; mv /run/asked/tmp.$$ /run/asked/shutdown.$$;;
esac; done
while [ -e /run/asked/shutdown.$$ ]; do sleep 0.1; done
END
cat >bin/systemctl <<'END'
#!/bin/sh
[ "$1 $2" = "enable --now" ] || exit 1
cp "$3" /run/asked/tmp.$$; mv /run/asked/tmp.$$ /run/asked/unit.$$
END
chmod 755 bin/*
cp -a /usr/local/bin/python* bin/ 2>/dev/null || true
i=0
for d in /tmp /home /run /root /work /check; do [ ! -d $d ] || mount -t tmpfs -o mode=755 none $d; done
mount -t tmpfs -o mode=1777,size=2g none /dev/shm
chmod 1777 /tmp
for d in "$@"; do i=$((i + 1)); mkdir -p "$d"; mount --bind "in/$i" "$d"; mount -o remount,bind,ro "$d"; done
mount --bind bin /usr/local/bin
mkdir -p /run/sshd /run/asked /run/systemd/shutdown /root/.ssh /root/keys /home/ubuntu
chmod 1777 /run/asked
mount -t tmpfs -o "mode=755,size=$disk" none /home/ubuntu
for home in /root /home/ubuntu; do
  mkdir -p $home/.ssh
  cp key.pub $home/.ssh/authorized_keys
  touch $home/.bashrc
  echo '. ~/.bashrc' >$home/.profile
  chmod 700 $home/.ssh
  chmod 600 $home/.ssh/authorized_keys
done
chown -R 4242:4242 /home/ubuntu
ssh-keygen -q -t ed25519 -N "" -f /root/keys/host

keep() { # the program of a unit, as its user, and again whenever it ends
  # shellcheck disable=SC2046
  while true; do
    setpriv --reuid="$(sed -n 's/^User=//p' "$1")" --regid=4242 --init-groups \
      env "$(sed -n 's/^Environment=//p' "$1")" $(sed -n 's/^ExecStart=//p' "$1") || true
    sleep 1
  done
}
watch() {
  at=
  while sleep 0.5; do
    for f in /run/asked/shutdown.*; do
      [ -e "$f" ] || continue
      at=$(($(date +%s) + 60 * $(cat "$f")))
      echo "USEC=${at}000000" >/run/systemd/shutdown/new
      mv /run/systemd/shutdown/new /run/systemd/shutdown/scheduled
      rm -f /run/nologin "$f"
    done
    for f in /run/asked/unit.*; do
      [ -e "$f" ] || continue
      [ -e /run/unit ] || { mv "$f" /run/unit; keep /run/unit & }
      rm -f "$f"
    done
    now=$(date +%s)
    [ -n "$at" ] || continue
    [ "$now" -lt $((at - 300)) ] || [ -e /run/nologin ] ||
      echo "System is going down. Unprivileged users are not permitted to log in anymore." >/run/nologin
    [ "$now" -lt "$at" ] || kill -TERM 1
  done
}
(exec 9>&-; watch) >/dev/null 2>&1 </dev/null &
exec /usr/sbin/sshd -D -e -h /root/keys/host -o "UsePAM=$pam" -o PidFile=none -o PasswordAuthentication=no \
  -o PermitRootLogin=prohibit-password -o MaxStartups=50
