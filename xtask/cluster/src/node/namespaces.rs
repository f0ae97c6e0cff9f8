//! The namespaces that a node lives in: of its own are network, mounts and processes.
//!
//! What it does to the network, mounts and starts therefore ends with the namespaces' first process, whatever that ends
//! of, and two nodes, or a node and the machine's own kubelet, know nothing of each other.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a kubelet sets for the whole machine, and finds set in its own view of it, so that the machine stays as it is.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Makes the folders that programs of a node have as of right into folders of this cluster, says so, and stays as the
/// first process, which reaps what nobody else does.
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

/// The file that is there once the namespaces are as they should be.
pub(super) fn ready(dir: &Path) -> PathBuf {
    dir.join("ready")
}

/// A program in the namespaces of the process with this pid. It ends with the `nsenter` that is started.
pub(super) fn enter(pid: i32, program: impl AsRef<OsStr>) -> Command {
    let mut nsenter = Command::new("nsenter");
    nsenter.arg(format!("--target={pid}")).args(["--net", "--mount"]);
    // The process itself is outside of the process namespace that it made for its children.
    nsenter.arg(format!("--pid=/proc/{pid}/ns/pid_for_children"));
    nsenter.args(["setpriv", "--pdeathsig", "KILL", "--"]).arg(program);
    nsenter
}
