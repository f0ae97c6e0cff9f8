//! The namespaces of a node: network, mounts and processes.
//!
//! Everything that the node does to the network and mounts, and every process that it starts, ends with the namespaces' first process,
//! however that ends. Two nodes, or a node and the machine's own kubelet, do not see each other.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Settings that a kubelet makes for the whole machine. The node sees its own values of them, so the machine's stay as they are.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Mounts folders of this cluster over the system folders that a node's programs use, and reports that it is ready. Then it stays as
/// the first process, and reaps orphaned processes.
const RUN: &str = r#"set -e
dir=$1
shift
mount --make-rshared /
mount -t tmpfs node /run
mount -t tmpfs node /var/log
mkdir -p /var/lib/kubelet /var/log/pods
mount --bind "$dir/kubelet" /var/lib/kubelet
mount --bind "$dir/pods" /var/log/pods
while [ $# -gt 0 ]; do
  file=$(mktemp -p /run)
  echo "$2" > "$file"
  mount --bind "$file" "/proc/sys/$1"
  shift 2
done
: > "$dir/ready"
sleep infinity & wait
"#;

/// The first process of namespaces whose folders are below `dir`.
pub(super) fn command(dir: &Path) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    unshare.args(["sh", "-c", RUN, "sh"]).arg(dir);
    for (name, value) in KERNEL_SETTINGS {
        unshare.args([name, value]);
    }
    unshare
}

/// The file that exists once the namespaces are ready.
pub(super) fn ready(dir: &Path) -> PathBuf {
    dir.join("ready")
}

/// Runs a program in the namespaces of the process with this pid. The program ends with the `nsenter` process.
pub(super) fn enter(pid: i32, program: impl AsRef<OsStr>) -> Command {
    let mut nsenter = Command::new("nsenter");
    nsenter.arg(format!("--target={pid}")).args(["--net", "--mount"]);
    // The process itself is not in the process namespace that it made for its children.
    nsenter.arg(format!("--pid=/proc/{pid}/ns/pid_for_children"));
    nsenter.args(["setpriv", "--pdeathsig", "KILL", "--"]).arg(program);
    nsenter
}
