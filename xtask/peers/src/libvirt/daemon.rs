//! A libvirtd in namespaces of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::process::{Lifetime, Process};
use libvirt_client::{Client, ConnectUri, Options};

/// The packages of a daemon of either driver: the daemon itself and virsh, but not the package that runs libvirtd as a service.
pub(super) const PACKAGES: [&str; 2] = ["libvirt-clients", "libvirt-daemon"];

/// libvirt's folders, and the folder of the instance that each one is inside the namespace.
const FOLDERS: [(&str, &str); 5] = [
    ("run", "/run/libvirt"),
    ("etc", "/etc/libvirt"),
    ("lib", "/var/lib/libvirt"),
    ("cache", "/var/cache/libvirt"),
    ("log", "/var/log/libvirt"),
];

/// The databases of users and groups, with the line to add to each one that lacks [`QEMU_USER`].
const ACCOUNTS: [(&str, &str); 2] = [
    ("/etc/passwd", "libvirt-qemu:x:64055:64055:Libvirt Qemu:/var/lib/libvirt:/usr/sbin/nologin"),
    ("/etc/group", "libvirt-qemu:x:64055:"),
];
/// The user and group that the QEMU driver looks up before it reads `qemu.conf`. libvirtd ends if one is missing. The package that makes
/// them, `libvirt-daemon-system`, would also start the machine's own libvirtd. So the instance gets account databases of its own instead.
const QEMU_USER: &str = "libvirt-qemu";

/// How long a daemon may take until it answers.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// A path of a unix socket has 107 bytes at most.
const MAX_SOCKET_PATH: usize = 107;

/// The driver that a daemon is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The test driver, which is part of libvirtd. The process that is supervised is libvirtd itself, so it can be paused.
    TestDriver,
    /// The QEMU driver: libvirtd and its QEMU processes are in a process namespace, and end together.
    Qemu,
}

/// Mounts the instance's folders (pairs of source and target, after the instance's own folder) over libvirt's.
const MOUNT: &str = r#"set -e
PATH=$PATH:/usr/sbin:/sbin
dir=$1
shift
while [ $# -gt 0 ]; do
  [ -e "$2" ] || mkdir -p "$2"
  mount --bind "$1" "$2"
  shift 2
done
set -- libvirtd --listen --config "$dir/libvirtd.conf" --pid-file "$dir/libvirtd.pid"
"#;

/// The shell stays as the namespace's first process, and reaps orphaned processes.
const RUN_AND_REAP: &str = r#""$@" & wait $!"#;
const REPLACE: &str = r#"exec "$@""#;

/// The configuration of a daemon that listens only on its socket.
pub(super) const NO_LISTENER: &str = "listen_tcp = 0\nlisten_tls = 0\n";

/// Writes the configuration into `dir`, a folder of its own. `listeners` are the lines for the network.
pub(super) fn prepare(dir: &Path, listeners: &str) -> Result<()> {
    for folder in FOLDERS.iter().map(|(folder, _)| *folder).chain(["sock"]) {
        let folder = dir.join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        // QEMU may run as another user, which must be able to enter the folder.
        fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
    }
    let socket = socket(dir);
    ensure!(
        socket.as_os_str().len() <= MAX_SOCKET_PATH,
        "{} is too long for a unix socket ({MAX_SOCKET_PATH} bytes at most): use a folder with a shorter path",
        socket.display()
    );
    write(
        &dir.join("libvirtd.conf"),
        &format!(
            "host_uuid = \"{}\"\nunix_sock_dir = \"{}\"\nunix_sock_group = \"root\"\nauth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\n\
             log_outputs = \"3:stderr\"\n{listeners}",
            // Its own host UUID, like any other machine's. It stays the same when the daemon restarts.
            uuid(),
            dir.join("sock").display()
        ),
    )
}

/// Writes what the QEMU driver also needs.
pub(super) fn prepare_qemu(dir: &Path) -> Result<()> {
    for (database, line) in ACCOUNTS {
        let lines =
            fs::read_to_string(database).with_context(|| format!("reading the accounts in {database}"))?;
        write(&account(dir, database), &with_account(lines, line))?;
    }
    // QEMU's output is written to files instead of a virtlogd. QEMU runs as the user that libvirtd runs as.
    write(
        &dir.join("etc/qemu.conf"),
        "stdio_handler = \"file\"\nuser = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\n\
         dynamic_ownership = 0\nremember_owner = 0\nnamespaces = []\ncgroup_controllers = []\n",
    )
}

/// A random UUID.
fn uuid() -> String {
    let (time, rest) = (fastrand::u32(..), fastrand::u64(..1 << 48));
    format!(
        "{time:08x}-{:04x}-4{:03x}-8{:03x}-{rest:012x}",
        fastrand::u16(..),
        fastrand::u16(..4096),
        fastrand::u16(..4096)
    )
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// The lines of an account database, with `line` added if it has no [`QEMU_USER`].
fn with_account(mut lines: String, line: &str) -> String {
    if !lines.lines().any(|line| line.split(':').next() == Some(QEMU_USER)) {
        if !lines.is_empty() && !lines.ends_with('\n') {
            lines.push('\n');
        }
        lines.push_str(line);
        lines.push('\n');
    }
    lines
}

/// The instance's own copy of an account database.
fn account(dir: &Path, database: &str) -> PathBuf {
    dir.join(database.trim_start_matches("/etc/"))
}

/// The socket of the daemon in this folder.
pub(super) fn socket(dir: &Path) -> PathBuf {
    dir.join("sock/libvirt-sock")
}

/// The URI of `driver` (`test`) and `path` (`/default`) at the daemon behind this socket.
pub(super) fn uri(socket: &Path, driver: &str, path: &str) -> Result<ConnectUri> {
    let text = format!("{driver}+unix://{path}?socket={}", socket.display());
    text.parse().with_context(|| format!("the path {} cannot be part of a URI", socket.display()))
}

/// Fails if a user must first make folders: in its namespace, it may mount over folders, but not make them in root's.
pub(super) fn ensure_folders() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let missing = FOLDERS.iter().map(|(_, target)| *target).filter(|it| !Path::new(it).exists());
    let missing: Vec<_> = missing.collect();
    ensure!(
        missing.is_empty(),
        "libvirt's folders are missing, as after each start of this machine; make them with\n  sudo mkdir -p {}",
        missing.join(" ")
    );
    Ok(())
}

/// Starts the daemon of a prepared folder. Its log is `libvirtd.log` there.
pub(super) fn start(dir: &Path, purpose: Purpose, lifetime: Lifetime) -> Result<Process> {
    let mut unshare = Command::new("unshare");
    unshare.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    let run = match purpose {
        Purpose::TestDriver => {
            // There is no such folder, so libvirtd finds no modules of other drivers.
            unshare.env("LIBVIRT_DRIVER_DIR", dir.join("drivers"));
            REPLACE
        }
        Purpose::Qemu => {
            unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
            RUN_AND_REAP
        }
    };
    unshare.args(["sh", "-c", &format!("{MOUNT}{run}"), "sh"]).arg(dir);
    for (folder, target) in FOLDERS {
        unshare.arg(dir.join(folder)).arg(target);
    }
    if purpose == Purpose::Qemu {
        for (database, _) in ACCOUNTS {
            unshare.arg(account(dir, database)).arg(database);
        }
    }
    Process::start("libvirtd", &unshare, dir, lifetime)
}

/// A client of the daemon behind `process`, once it answers.
pub(super) async fn connect(process: &Process, uri: &ConnectUri) -> Result<Client> {
    // The test driver's state lives only as long as a connection is open. So this client must not drop its
    // connection because of a slow answer.
    let options = Options::default();
    let client = Client::new(uri.clone(), Options { stalled_after: options.call_timeout, ..options });
    let probe = || async { Ok(client.lib_version().await?) };
    process.wait_until("libvirtd answers", READY_DEADLINE, probe).await?;
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_added_once_and_other_accounts_stay() {
        let (_, line) = ACCOUNTS[0];
        let added = with_account("root:x:0:0:root:/root:/bin/bash".to_owned(), line);
        assert_eq!(added, format!("root:x:0:0:root:/root:/bin/bash\n{line}\n"));
        assert_eq!(with_account(added.clone(), line), added);
    }

    #[test]
    fn an_account_of_the_machine_is_kept_as_it_is() {
        let lines = "libvirt-qemu:x:110:104::/var/lib/libvirt:/usr/sbin/nologin\n".to_owned();
        assert_eq!(with_account(lines.clone(), ACCOUNTS[0].1), lines);
    }
}
