# shellcheck shell=bash
# Two hosts on this machine, for tests and measurements: network namespaces joined by a veth pair. Sourced; nothing is
# made before make_hosts, and who calls it calls remove_hosts at the end, however that comes.
#
#   make_hosts NAME NETWORK    hosts $a at $first and $b at $second, which are 10.NETWORK.0.1 and .2, their devices link0;
#                              1 where that cannot be, with the reason in $why_no_hosts
#   in_host HOST COMMAND...    in the network of $a or $b, under that host's name
#   become HOST COMMAND... &   the same in the background, where $! is the command itself
#   remove_hosts               and kills what runs there
# shellcheck disable=SC2034 # first, second and the reason are for who sources this

# not `ip netns exec` or `ip -n`, which mount /sys anew: a chroot does not allow that
become() {
  local host=$1
  shift
  exec nsenter --net="/run/netns/$host" unshare --uts sh -c "hostname $host; exec \"\$@\"" - "$@"
}
in_host() { (become "$@"); }

make_hosts() {
  local tool host
  a=$1-a$$ b=$1-b$$ first=10.$2.0.1 second=10.$2.0.2
  for tool in ip nsenter unshare; do
    command -v $tool >/dev/null || { why_no_hosts="$tool is not there: apt-get install iproute2 util-linux" && return 1; }
  done
  why_no_hosts="no right to make network namespaces"
  ip netns add "$a" 2>/dev/null && ip netns add "$b" 2>/dev/null || return 1
  why_no_hosts="no veth devices"
  ip link add link0 netns "$a" type veth peer name link0 netns "$b" 2>/dev/null || return 1
  in_host "$a" ip addr add "$first/24" dev link0
  in_host "$b" ip addr add "$second/24" dev link0
  for host in "$a" "$b"; do
    in_host "$host" ip link set lo up
    in_host "$host" ip link set link0 up
  done
  why_no_hosts=
}

remove_hosts() {
  local host
  for host in "${a:-}" "${b:-}"; do
    [ -n "$host" ] || continue
    ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null
    ip netns del "$host" 2>/dev/null
  done
}
