#!/usr/bin/env bash
# A Slurm of two nodes on this machine alone, to test on: accounting, two stand-ins for GPUs on each node, a partition that
# preempts (`high`) and one that is preempted (`main`). All of it listens on 127.0.0.1.
#
#   bash scripts/slurm-up.sh DIR      state and logs in DIR; afterwards: export SLURM_CONF=DIR/slurm.conf
#   bash scripts/slurm-down.sh DIR    stops it
#
# It needs root, and Debian's or Ubuntu's packages, which it installs where they are missing. Nothing of it is for real use:
# every job runs as root.
set -euo pipefail

dir="$(realpath -m "${1:?which folder shall it live in?}")"
host="$(hostname -s)"
if [ "$(id -u)" != 0 ]; then
  echo "error: Slurm's daemons are started by root." >&2
  exit 2
fi
packages=(slurmctld slurmd slurm-client slurmdbd munge mariadb-server)
# there PROGRAM...: whether all of them are; of several, `command -v` is content with one.
there() { for program in "$@"; do command -v "$program" >/dev/null || return 1; done; }
if ! there slurmctld slurmd sbatch slurmdbd munged mariadbd; then
  apt-get -qq update
  # Their services are not started: that is what the rest of this script is for.
  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null
fi

# A daemon must not hold on to the output of whoever waits for this script.
quietly() { "$@" </dev/null >/dev/null 2>&1; }
# until_ok COMMAND: try it for 20 s.
until_ok() {
  for _ in $(seq 80); do
    if "$@" </dev/null >/dev/null 2>&1; then return; fi
    sleep 0.25
  done
  echo "error: no answer to: $*; logs: $dir/log" >&2
  return 1
}
sql() { mariadb --no-defaults -S "$dir/db/socket" -e "$1"; }

mkdir -p "$dir/state" "$dir/log" "$dir/db"
chmod 755 "$dir"
for folder in "$dir" "$(dirname "$dir")"; do
  if ! runuser -u mysql -- test -x "$folder"; then
    echo "error: $folder must be open to the user mysql, who keeps the accounting (chmod o+x)." >&2
    exit 2
  fi
done

mkdir -p /run/munge /var/log/munge
chown munge: /run/munge /var/log/munge
chmod 755 /run/munge
if ! munge -n >/dev/null 2>&1; then
  quietly runuser -u munge -- /usr/sbin/munged --num-threads 2
  touch "$dir/munge-is-ours"
fi
# Programs in a job look up the names of its nodes.
grep -q ' n1 n2$' /etc/hosts || echo '127.0.0.1 n1 n2' >>/etc/hosts
for number in 0 1; do
  [ -c "$dir/gpu$number" ] || mknod "$dir/gpu$number" c 1 3
done
echo "NodeName=n[1-2] Name=gpu File=$dir/gpu[0-1] Flags=nvidia_gpu_env" >"$dir/gres.conf"

chown mysql: "$dir/db"
[ -d "$dir/db/mysql" ] ||
  quietly mariadb-install-db --user=mysql --datadir="$dir/db" --skip-test-db --auth-root-authentication-method=socket
setsid mariadbd --no-defaults --user=mysql --datadir="$dir/db" --socket="$dir/db/socket" --pid-file="$dir/db/pid" \
  --bind-address=127.0.0.1 --port=16820 --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 \
  </dev/null >"$dir/log/db.log" 2>&1 &
echo $! >"$dir/db.pid" # its own file comes late, when it is ready
until_ok sql 'select 1'
sql "create database if not exists slurm_acct"
for from in 127.0.0.1 localhost; do
  sql "create user if not exists slurm@'$from' identified by 'x'; grant all on slurm_acct.* to slurm@'$from'"
done

cat >"$dir/slurmdbd.conf" <<CONF
AuthType=auth/munge
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=16819
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=16820
StorageUser=slurm
StoragePass=x
StorageLoc=slurm_acct
LogFile=$dir/log/slurmdbd.log
PidFile=$dir/slurmdbd.pid
CommunicationParameters=NoInAddrAny
CONF
chmod 600 "$dir/slurmdbd.conf"
cat >"$dir/slurm.conf" <<CONF
ClusterName=posbench
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# Otherwise a job that was put into the queue again waits for two minutes.
AuthInfo=cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort=16817
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=10
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=16819
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=16821 CPUs=2 RealMemory=4000 Gres=gpu:2
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=16822 CPUs=2 RealMemory=4000 Gres=gpu:2
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=n[1-2] MaxTime=60 PriorityTier=10 PreemptMode=OFF
CONF

export SLURM_CONF="$dir/slurm.conf"
quietly slurmdbd
until_ok sacctmgr -n show cluster
quietly slurmctld
quietly slurmd -N n1
quietly slurmd -N n2
until_ok sh -c '[ "$(sinfo -h -p main -t idle -o %D)" = 2 ]'
echo "export SLURM_CONF=$SLURM_CONF"
